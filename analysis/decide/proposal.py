"""What to run for an open question: the proposal, in text and as JSON."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import isfinite, isnan, nan
from typing import Any

from analysis.decide.arms import Arm, compare_settings, repeat_alike
from analysis.decide.command import Config
from analysis.papers.claim import scale_of
from analysis.stats.answer import capitalize
from analysis.tables.validity import ALIKE
from sweeper.spec.sentences import several
from sweeper.store.run_columns import git_commit

_NOTHING = "Nothing to propose"
_WHY = (
    "no best setting is at an end of what was tried, no point has a single seed, more seeds would "
    "tell neither batches nor learning-rate rules apart, and no claim of a paper on these points "
    "is open"
)

#: Most seeds per point that are proposed.
MOST_SEEDS = 50


Interval = tuple[float, float]

#: Neither end is known.
UNKNOWN: Interval = (nan, nan)


def interval_width(interval: Interval) -> float:
    """From end to end; nan if an end is not known or infinite."""
    low, high = interval
    return high - low if isfinite(low) and isfinite(high) else nan


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """What to run next for an open question.

    Attributes:
        question: in words.
        configs: of the runs to add; empty if no runs decide.
        why: what they are for, or why none decide, in words.
        now: the 95 % interval so far; nan if there is none.
        expected: the interval after these runs; nan if it is not known.
        unit: of both.
        repeats: why all that is compared is run again, in a sentence; empty if it is not.
        run_ids: of the runs to add.
        device_hours: that they take; None if the time of a run is not known [hours].
        cost: device-hours times their price; None without a price or a time.
        commands: that train them.
        settles: the other open questions that need no more than these runs.
    """

    question: str
    configs: Sequence[Config] = ()
    why: str = ""
    now: Interval = UNKNOWN
    expected: Interval = UNKNOWN
    unit: str = ""
    repeats: str = ""
    run_ids: frozenset[str] = frozenset()
    device_hours: float | None = None
    cost: float | None = None
    commands: Sequence[str] = ()
    settles: Sequence[str] = ()


#: What is not the same in runs that were added, in plain words.
_OTHER = {
    "ranks": "number of ranks", "code": "version of your code",
    "code at the start": "version of your code", "commit": "version of the program",
    "training examples": "number of training examples",
}  # fmt: skip


def propose_runs(arms: Sequence[Arm], added: Sequence[Config], blank: Proposal) -> Proposal:
    """Add the runs; also all that is compared, if it would differ in more than the question."""
    found = compare_settings(arms, added, git_commit())
    if not found:
        return replace(blank, configs=added)
    try:
        configs = repeat_alike(arms, added)
    except ValueError as error:
        return replace(blank, why=f"{error}", expected=UNKNOWN)
    other = [_OTHER.get(word, word) for word in ALIKE.values() if f"{word} " in " ".join(found)]
    why = (
        "All points are run again, in a folder of their own: beside these runs, new ones would "
        f"have another {' and '.join(dict.fromkeys(other))}."
    )
    return replace(blank, configs=configs, repeats=why)


def proposals_text(proposals: Sequence[Proposal]) -> Iterator[str]:
    """A paragraph for each, in their order."""
    if not proposals:
        yield f"{_NOTHING}: {_WHY}."
    some = [proposal for proposal in proposals if proposal.commands]
    for number, proposal in enumerate(some, 1):
        lines = [f"   {line}" for line in (*proposal.commands, *_lines(proposal))]
        yield "\n".join([f"{number}. {proposal.question}", *lines])
    if undecided := [proposal for proposal in proposals if not proposal.commands]:
        rest = [f"  {p.question}\n    {' '.join(_lines(p))}" for p in undecided]
        yield "\n".join(["Not decided by any proposed run:", *rest])
    if any(proposal.configs and proposal.device_hours is None for proposal in some):
        yield (
            "Where the time is not known, no such run has finished on this device: "
            "`sweeper plan --probe` with the words of the command measures it."
        )


def proposal_pairs(proposals: Sequence[Proposal]) -> list[list[Any]]:
    """Each question that runs decide, with the rest in words, and the commands.

    If there is none, the others; if there are none either, that nothing is open.
    """
    if not proposals:
        return [[_NOTHING, f"{capitalize(_WHY)}.", []]]
    shown = [proposal for proposal in proposals if proposal.commands] or proposals
    return [[p.question, "\n".join(_lines(p)), [*p.commands]] for p in shown]


def _lines(proposal: Proposal) -> Iterator[str]:
    """Why the runs, or why none; what they cost; and what else is to be known of them."""
    start = "Why: " if proposal.configs else ""
    yield capitalize(f"{start}{proposal.why.rstrip('.')}{_describe_width(proposal)}.")
    if proposal.configs:
        cost = "time not known"
        if proposal.device_hours is not None:
            money = f", price {proposal.cost:.2f}" if proposal.cost else ""
            cost = f"{proposal.device_hours:.3g} device-hours{money}"
        yield f"Cost: {several(len(proposal.run_ids), 'run')}, {cost}."
    yield from filter(None, [proposal.repeats])
    if proposal.settles:
        yield f"The same runs also decide: {'; '.join(proposal.settles)}."


def _describe_width(proposal: Proposal) -> str:
    """How narrow the interval is expected to become; empty if that is not known."""
    now, then = interval_width(proposal.now), interval_width(proposal.expected)
    if isnan(then):
        return ""
    scale, unit = scale_of(proposal.unit)
    most = "" if proposal.configs else f"with {MOST_SEEDS} "
    after = f"{scale * then:.3g} {unit}".strip()
    before = "there is none now" if isnan(now) else f"now {scale * now:.3g}"
    return f"; {most}the 95 % interval would be {after} wide ({before})"


def as_json(proposals: Sequence[Proposal]) -> list[dict[str, Any]]:
    """For scripts; null where a number is not known."""

    def number(value: float) -> float | None:
        return value if isfinite(value) else None

    return [
        {
            "question": proposal.question,
            "why": proposal.why,
            "runs": len(proposal.run_ids),
            "run_ids": sorted(proposal.run_ids),
            "commands": list(proposal.commands),
            "device_hours": proposal.device_hours,
            "cost": proposal.cost,
            "interval": [number(end) for end in proposal.now],
            "width": number(interval_width(proposal.now)),
            "expected_width": number(interval_width(proposal.expected)),
            "unit": proposal.unit,
            "settles": list(proposal.settles),
            "repeats": proposal.repeats,
        }
        for proposal in proposals
    ]
