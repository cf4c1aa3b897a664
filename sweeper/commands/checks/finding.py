"""What a check found."""

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """How bad it is."""

    GOOD = "good"
    WARNING = "warning"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        verdict: how bad it is.
        what: was looked at.
        found: in a few words.
        do: what to do about it; empty if nothing.
    """

    verdict: Verdict
    what: str
    found: str
    do: str = ""


def good(what: str, found: str) -> Finding:
    """Nothing to do."""
    return Finding(Verdict.GOOD, what, found)


def warning(what: str, found: str, do: str) -> Finding:
    """May go wrong."""
    return Finding(Verdict.WARNING, what, found, do)


def broken(what: str, found: str, do: str) -> Finding:
    """Will go wrong."""
    return Finding(Verdict.BROKEN, what, found, do)
