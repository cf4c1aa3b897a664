"""What came of every run: immutable files published by rename, none shared by two writers.

    results/runs/<run_id>-<attempt>-<outcome>.parquet   one row: the run's current attempt
    results/curves/<run_id>-<attempt>.parquet           one row per epoch of that attempt
    results/superseded/runs, results/superseded/curves  the earlier attempts
    results/attempts/<run_id>/                          checkpoint, and a folder for each attempt

Plain pandas reads runs and curves; a listing of runs alone tells how each run ended.
"""

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeper.domain.outcomes import Outcome

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The current row of a run, as its file name tells.

    Attributes:
        run_id: hash of the scientific configuration.
        attempt: 1-based.
        outcome: how the attempt ended.
    """

    run_id: str
    attempt: int
    outcome: Outcome

    @property
    def runs_name(self) -> str:
        """Name of the row's file in runs."""
        return f"{self.run_id}-{self.attempt:03d}-{self.outcome}.parquet"

    @property
    def curves_name(self) -> str:
        """Name of the file in curves."""
        return f"{self.run_id}-{self.attempt:03d}.parquet"

    @classmethod
    def from_name(cls, name: str) -> "Ended | None":
        """What a file name in runs tells; None for a foreign file."""
        parts = name.removesuffix(".parquet").split("-")
        try:
            run_id, attempt, outcome = parts
            return cls(run_id=run_id, attempt=int(attempt), outcome=Outcome(outcome))
        except ValueError:
            return None


class Ledger:
    """A results folder.

    Args:
        results: the folder; made when the first run starts.
    """

    def __init__(self, results: Path) -> None:
        self.results = results
        self._runs, self._curves = results / "runs", results / "curves"

    def prepare(self) -> None:
        """Make the folders.

        Raises:
            ValueError: if the results folder cannot be written.
        """
        try:
            for folder in (self._runs, self._curves, self.results / "attempts"):
                folder.mkdir(parents=True, exist_ok=True)
            probe = self.results / f".probe-{os.getpid()}"
            probe.touch()
            probe.unlink()
        except OSError as error:
            msg = (
                f"results must be a folder that can be written; got results={self.results}: "
                f"{error.strerror}. Choose another with results=FOLDER."
            )
            raise ValueError(msg) from error

    def ended(self) -> dict[str, Ended]:
        """The current row of each run, from one listing."""
        if not self._runs.is_dir():
            return {}
        rows: dict[str, Ended] = {}
        for name in os.listdir(self._runs):  # noqa: PTH208  names alone: 10,000 in milliseconds
            row = Ended.from_name(name)
            if row and (row.run_id not in rows or rows[row.run_id].attempt < row.attempt):
                rows[row.run_id] = row
        return rows

    def run_folder(self, run_id: str) -> Path:
        """Where a run keeps its checkpoint and its attempts."""
        return self.results / "attempts" / run_id

    def attempt_folder(self, run_id: str, attempt: int) -> Path:
        """Where an attempt keeps its config, log and progress."""
        return self.run_folder(run_id) / f"{attempt:03d}"

    def next_attempt(self, run_id: str) -> int:
        """The number of the attempt that would be made now, 1-based."""
        folder = self.run_folder(run_id)
        numbers = [int(p.name) for p in folder.glob("[0-9]*")] if folder.is_dir() else []
        return max(numbers, default=0) + 1

    def publish(self, row: Mapping[str, Any], curve: Sequence[Mapping[str, Any]]) -> Ended:
        """Make an attempt the current one of its run.

        The row appears last and at once, so a run either has a complete row or none.

        Args:
            row: the columns of the runs table.
            curve: the columns of the curves table, one mapping per epoch.
        """
        from sweeper.schema import CURVES, RUNS, arrow_schema  # pyarrow: 0.2 s

        now = Ended(run_id=row["run_id"], attempt=row["attempt"], outcome=Outcome(row["outcome"]))
        before = self.ended().get(now.run_id)
        if before and before != now:
            self._supersede(before)
        keys = {"run_id": now.run_id, "attempt": now.attempt}
        rows = [{**keys, **epoch} for epoch in curve]
        _write(rows, arrow_schema(CURVES), self._curves / now.curves_name)
        _write([row], arrow_schema(RUNS), self._runs / now.runs_name)
        return now

    def _supersede(self, ended: Ended) -> None:
        for table, name in (("curves", ended.curves_name), ("runs", ended.runs_name)):
            folder = self.results / "superseded" / table
            folder.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                (self.results / table / name).replace(folder / name)


def _write(rows: Sequence[Mapping[str, Any]], schema: "pa.Schema", path: Path) -> None:
    """Publish rows as a parquet file: write beside the target, then rename."""
    import pyarrow as pa  # only who writes needs it
    import pyarrow.parquet as pq

    partial = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), partial)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
