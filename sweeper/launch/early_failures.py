"""The first runs of a sweep to end: whether all failed alike, so that the others would too."""

import re
from dataclasses import dataclass, field
from pathlib import Path

from sweeper.spec.worker_args import METRIC_NOT_LOGGED
from sweeper.store.publish import Text, publish_json, read_as

#: A mistake in the command fails all runs; a mistake in a point rarely the first three.
_FIRST = 3

_REMEDY = (
    "Once the cause is removed, the same command retries them; add keep_going=true to start the "
    "others anyway."
)


@dataclass(slots=True)
class FirstEnds:
    """How the first runs ended, collected as they end."""

    _reasons: dict[str, str] = field(default_factory=dict[str, str])
    _differ: bool = False

    def add(self, run_id: str, reason: str, *, is_early: bool) -> None:
        """Record why a run ended, and whether it failed before its first step."""
        if self._differ or len(self._reasons) == _FIRST:
            return
        self._reasons[run_id] = reason
        # numbers depend on the point, such as batch or seed
        distinct = {re.sub(r"\d+", "#", reason) for reason in self._reasons.values()}
        self._differ = not is_early or len(distinct) > 1

    @property
    def why_stop(self) -> str | None:
        """Why no further run should start; None if they may."""
        if self._differ or not self._reasons:
            return None
        reason = " ".join(next(iter(self._reasons.values())).split()).rstrip(".")
        if METRIC_NOT_LOGGED in reason:  # concerns the command, so all other runs too
            return f"No further runs are started, as they name the same metric: {reason}. {_REMEDY}"
        if len(self._reasons) < _FIRST:
            return None
        return (
            f"No further runs are started: the first {_FIRST} runs to end all failed before their "
            f"first step: {reason}. {_REMEDY}"
        )


@dataclass(frozen=True, slots=True)
class _FirstEnd:
    reason: Text
    is_early: bool


class SharedFirstEnds:
    """How the first runs of several processes ended: a file for each run, in a shared folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def add(self, run_id: str, reason: str, *, is_early: bool) -> None:
        """Record why a run ended, as `FirstEnds` does."""
        if len(list(self._folder.glob("*.json"))) < _FIRST:
            self._folder.mkdir(parents=True, exist_ok=True)
            publish_json(self._folder / f"{run_id}.json", {"reason": reason, "is_early": is_early})

    @property
    def why_stop(self) -> str | None:
        """Why no further run should start; None if they may."""
        ends = FirstEnds()
        for path in self._folder.glob("*.json"):
            if end := read_as(_FirstEnd, path):
                ends.add(path.stem, end.reason, is_early=end.is_early)
        return ends.why_stop
