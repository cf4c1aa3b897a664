"""What to run for one open question."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from analysis.decide.arms import Arm, differences, repeated
from analysis.decide.bill import NOTHING, Priced
from analysis.decide.command import Config
from analysis.decide.expected import UNKNOWN, Interval
from sweeper.store.row import git_commit


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """What to run next for an open question.

    Attributes:
        question: in words.
        configs: of the runs to add; empty if no runs decide.
        why: what they are for, or why none decide, in words.
        now: the 95 % interval so far; nan without one.
        expected: the one after these runs; nan if it is not known.
        unit: of both.
        repeats: why all that is compared is run again, in a folder of its own; empty if it is not.
        commit: of the code that made the existing runs, if fewer need adding with it; else empty.
        lacking: configs of these fewer runs.
        priced: what the runs are and cost.
        commands: that train them.
        joining: commands that train these fewer runs with that code.
        settles: the other open questions that need no more than these runs.
    """

    question: str
    configs: Sequence[Config] = ()
    why: str = ""
    now: Interval = UNKNOWN
    expected: Interval = UNKNOWN
    unit: str = ""
    repeats: str = ""
    commit: str = ""
    lacking: Sequence[Config] = ()
    priced: Priced = NOTHING
    commands: Sequence[str] = ()
    joining: Sequence[str] = ()
    settles: Sequence[str] = ()


def joined(arms: Sequence[Arm], added: Sequence[Config], blank: Proposal) -> Proposal:
    """Add the runs; also all that is compared, if it would differ in more than the question.

    All of it is then given one BatchNorm span, as a number; none is proposed if there is none.
    """
    found = differences(arms, added, git_commit())
    if not found:
        return replace(blank, configs=added)
    commits = {str(commit) for arm in arms for commit in arm.ended["git_commit"]}
    (commit, *others) = commits
    is_kept = not others and not commit.endswith("-dirty")
    try:
        configs = repeated(arms, added)
    except ValueError as error:
        return replace(blank, why=f"{error}", expected=UNKNOWN)
    spans = {config["bn_span"] for config in configs}
    if spans != {arm.config["bn_span"] for arm in arms}:
        blank = replace(blank, why=f"{blank.why}, all with bn_span={spans.pop()}")
    blank = replace(blank, configs=configs, repeats="; ".join(found))
    if not is_kept or not added or differences(arms, added, commit):
        return blank
    return replace(blank, commit=commit, lacking=added)
