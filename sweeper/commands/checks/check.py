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
    """One thing that was checked, what was found, and what to do about it; empty if nothing."""

    severity: Severity
    what: str
    found: str
    do: str = ""


def good(what: str, found: str) -> Check:
    """A finding that needs no action."""
    return Check(Severity.GOOD, what, found)


def warning(what: str, found: str, do: str) -> Check:
    """A finding that may cause trouble."""
    return Check(Severity.WARNING, what, found, do)


def broken(what: str, found: str, do: str) -> Check:
    """A finding that will cause a failure."""
    return Check(Severity.BROKEN, what, found, do)
