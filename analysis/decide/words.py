"""Proposals as text and as JSON."""

import re
from collections.abc import Iterator, Sequence
from math import isfinite, isnan
from typing import Any

from analysis.decide.expected import Interval, width
from analysis.decide.proposals import Proposal
from sweeper.spec.sentences import several
from sweeper.spec.tariff import taken

_NOTHING = "Nothing to propose"
_WHY = "no claim whose points were all run is open, and no best setting is at an end of the grid"


def in_words(proposals: Sequence[Proposal]) -> Iterator[str]:
    """A paragraph for each, in their order."""
    if not proposals:
        yield f"{_NOTHING}: {_WHY}."
    some = [proposal for proposal in proposals if proposal.commands]
    for number, proposal in enumerate(some, 1):
        yield "\n".join([f"{number}. {proposal.question}", *_lines(proposal)])
    if none := [proposal for proposal in proposals if not proposal.commands]:
        rest = [f"  {one.question}\n    {'; '.join(_sentences(one))}" for one in none]
        yield "\n".join(["Not decided by any proposed run:", *rest])
    if any(one.configs and one.priced.device_hours is None for one in some):
        yield (
            "Where the time is not known, no run of the same kind has finished on this device in "
            "the folder: `sweeper plan --probe` with the command's overrides measures it."
        )


def as_pairs(proposals: Sequence[Proposal]) -> list[list[str]]:
    """Each question with the rest in words; if there are none, that nothing is open."""
    if not proposals:
        return [[_NOTHING, f"{_WHY.capitalize()}."]]
    return [[one.question, "\n".join(line.strip() for line in _lines(one))] for one in proposals]


def _lines(proposal: Proposal) -> Iterator[str]:
    for sentence in _sentences(proposal):
        yield f"   {sentence}"
    if proposal.repeats:
        yield (
            "   All compared points run again, in a separate folder: runs added here would differ "
            f"in more than the setting in question: {_shortened(proposal.repeats)}."
        )
    if proposal.settles:
        yield f"   The same runs also decide: {'; '.join(proposal.settles)}."
    yield from (f"   {command}" for command in proposal.commands)
    if proposal.joining:
        commit = _shortened(proposal.commit)
        yield f"   Or, with the code of commit {commit}, only the missing runs:"
        yield from (f"   {command}" for command in proposal.joining)


def _shortened(text: str) -> str:
    """The text with commits shortened to their first 12 digits."""
    return re.sub(r"\b([0-9a-f]{12})[0-9a-f]{28}\b", r"\1", text)


def _sentences(proposal: Proposal) -> Iterator[str]:
    if proposal.configs:
        yield f"{_cost(proposal)}: {proposal.why}"
    else:
        yield proposal.why
    if interval := _widths(proposal):
        yield interval


def _cost(proposal: Proposal) -> str:
    runs = several(len(proposal.priced.run_ids), "run")
    priced = proposal.priced
    if priced.device_hours is None:
        return f"{runs}, time not known"
    return f"{runs}, {taken(priced.device_hours, priced.energy_kwh, priced.cost)}"


def _widths(proposal: Proposal) -> str:
    now, then = width(proposal.now), width(proposal.expected)
    if isnan(then):
        return ""
    scale, unit = (100, "points") if proposal.unit == "accuracy" else (1, proposal.unit)
    start = (
        "the 95 % interval"
        if proposal.configs
        else "with the most seeds that may be proposed the 95 % interval"
    )
    after = f"{scale * then:.3g} {unit}".strip()
    if isnan(now):
        return f"{start} is expected to be {after} wide; there is none now"
    return f"{start} is expected to be {after} wide, now {scale * now:.3g}"


def as_json(proposals: Sequence[Proposal]) -> list[dict[str, Any]]:
    """For scripts; null where a number is not known."""
    return [
        {
            "question": one.question,
            "why": one.why,
            "runs": len(one.priced.run_ids),
            "run_ids": sorted(one.priced.run_ids),
            "commands": list(one.commands),
            "device_hours": one.priced.device_hours,
            "energy_kwh": one.priced.energy_kwh,
            "cost": one.priced.cost,
            "interval": _plain(one.now),
            "width": _number(width(one.now)),
            "expected_width": _number(width(one.expected)),
            "unit": one.unit,
            "settles": list(one.settles),
            "repeats": one.repeats,
            "commit": one.commit,
            "commands_at_commit": list(one.joining),
        }
        for one in proposals
    ]


def _plain(interval: Interval) -> list[float | None]:
    return [_number(end) for end in interval]


def _number(value: float) -> float | None:
    return value if isfinite(value) else None
