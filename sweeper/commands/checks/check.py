"""The findings of a check."""

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How severe a finding is."""

    GOOD = "good"
    WARNING = "warning"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at, and what to do about it; empty if nothing."""

    severity: Severity
    what: str
    found: str
    do: str = ""


def good(what: str, found: str) -> Check:
    """Nothing to do."""
    return Check(Severity.GOOD, what, found)


def warning(what: str, found: str, do: str) -> Check:
    """May go wrong."""
    return Check(Severity.WARNING, what, found, do)


def broken(what: str, found: str, do: str) -> Check:
    """Will go wrong."""
    return Check(Severity.BROKEN, what, found, do)
