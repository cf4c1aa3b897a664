"""The first runs of a sweep to end: whether all failed alike, so that the others would too."""

import re
from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path

from sweeper.spec.worker_args import METRIC_NOT_LOGGED
from sweeper.store.publish import Text, publish_json, read_as

#: A mistake in the command fails all runs; a mistake in a point rarely the first three.
_FIRST = 3

_REMEDY = (
    "Once the cause is removed, the same command retries them; add keep_going=true to start the "
    "others anyway."
)


@dataclass(frozen=True, slots=True)
class _FirstEnd:
    reason: Text
    is_early: bool


class FirstEnds:
    """How the first runs ended, collected as they end.

    With a folder they are those of all processes that share it, in a file for each run.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder, self._known = folder, dict[str, _FirstEnd]()

    def add(self, run_id: str, reason: str, *, is_early: bool) -> None:
        """Record why a run ended, and whether it failed before its first step."""
        if len(self._read()) >= _FIRST:
            return
        self._known[run_id] = end = _FirstEnd(reason, is_early)
        if self._folder:
            self._folder.mkdir(parents=True, exist_ok=True)
            publish_json(self._folder / f"{run_id}.json", asdict(end))

    def _read(self) -> Collection[_FirstEnd]:
        if self._folder is None:
            return self._known.values()
        return [end for path in self._folder.glob("*.json") if (end := read_as(_FirstEnd, path))]

    @property
    def why_stop(self) -> str | None:
        """Why no further run should start; None if they may."""
        ends = self._read()
        # numbers depend on the point, such as batch or seed
        distinct = {re.sub(r"\d+", "#", end.reason) for end in ends}
        if len(distinct) != 1 or not all(end.is_early for end in ends):
            return None
        reason = " ".join(next(iter(ends)).reason.split()).rstrip(".")
        if METRIC_NOT_LOGGED in reason:  # concerns the command, so all other runs too
            return f"No further runs are started, as they name the same metric: {reason}. {_REMEDY}"
        if len(ends) < _FIRST:
            return None
        return (
            f"No further runs are started: the first {_FIRST} runs to end all failed before their "
            f"first step: {reason}. {_REMEDY}"
        )
