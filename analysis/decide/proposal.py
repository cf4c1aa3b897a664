"""What to run for an open question: the proposal, in text and as JSON."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import isfinite, isnan, nan
from typing import Any

from analysis.decide.arms import Arm, compare_settings, repeat_alike
from analysis.decide.command import Config
from analysis.papers.claim import scale_of
from sweeper.spec.sentences import several
from sweeper.store.run_columns import git_commit

_NOTHING = "Nothing to propose"
_WHY = (
    "no claim whose points were all run is open, no best setting is at an end of the grid, and no "
    "two rules need seeds"
)


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
        repeats: why all that is compared is run again, in a folder of its own; empty if it is not.
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


def propose_runs(arms: Sequence[Arm], added: Sequence[Config], blank: Proposal) -> Proposal:
    """Add the runs; also all that is compared, if it would differ in more than the question."""
    found = compare_settings(arms, added, git_commit())
    if not found:
        return replace(blank, configs=added)
    try:
        configs = repeat_alike(arms, added)
    except ValueError as error:
        return replace(blank, why=f"{error}", expected=UNKNOWN)
    return replace(blank, configs=configs, repeats="; ".join(found))


def proposals_text(proposals: Sequence[Proposal]) -> Iterator[str]:
    """A paragraph for each, in their order."""
    if not proposals:
        yield f"{_NOTHING}: {_WHY}."
    some = [proposal for proposal in proposals if proposal.commands]
    for number, proposal in enumerate(some, 1):
        lines = [f"   {line}" for line in _lines(proposal)]
        yield "\n".join([f"{number}. {proposal.question}", *lines])
    if undecided := [proposal for proposal in proposals if not proposal.commands]:
        rest = [f"  {p.question}\n    {'; '.join(_summary(p))}" for p in undecided]
        yield "\n".join(["Not decided by any proposed run:", *rest])
    if any(proposal.configs and proposal.device_hours is None for proposal in some):
        yield (
            "Where the time is not known, no run of the same kind has finished on this device in "
            "the folder: `sweeper plan --probe` with the command's overrides measures it."
        )


def proposal_pairs(proposals: Sequence[Proposal]) -> list[list[str]]:
    """Each question with the rest in words; if there are none, that nothing is open."""
    if not proposals:
        return [[_NOTHING, f"{_WHY.capitalize()}."]]
    return [[proposal.question, "\n".join(_lines(proposal))] for proposal in proposals]


def _lines(proposal: Proposal) -> Iterator[str]:
    def shorten(text: str) -> str:  # commits to their first 12 digits
        return re.sub(r"\b([0-9a-f]{12})[0-9a-f]{28}\b", r"\1", text)

    yield from _summary(proposal)
    if proposal.repeats:
        yield (
            "All compared points run again, in a separate folder: runs added here would differ in "
            f"more than the setting in question: {shorten(proposal.repeats)}."
        )
    if proposal.settles:
        yield f"The same runs also decide: {'; '.join(proposal.settles)}."
    yield from proposal.commands


def _summary(proposal: Proposal) -> Iterator[str]:
    """What the runs cost and are for, and how narrow they make the interval."""
    cost = "time not known"
    if proposal.device_hours is not None:
        money = f", cost {proposal.cost:.2f}" if proposal.cost else ""
        cost = f"{proposal.device_hours:.3g} device-hours{money}"
    runs = several(len(proposal.run_ids), "run")
    yield f"{runs}, {cost}: {proposal.why}" if proposal.configs else proposal.why
    now, then = interval_width(proposal.now), interval_width(proposal.expected)
    if isnan(then):
        return
    scale, unit = scale_of(proposal.unit)
    most = "" if proposal.configs else "with the most seeds that may be proposed "
    after = f"{scale * then:.3g} {unit}".strip()
    before = "; there is none now" if isnan(now) else f", now {scale * now:.3g}"
    yield f"{most}the 95 % interval is expected to be {after} wide{before}"


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
