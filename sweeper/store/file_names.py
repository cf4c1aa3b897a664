"""The files of the tables: their folders, and what a file name says about its rows."""

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sweeper.spec.outcomes import Outcome

#: Files with this prefix hold many rows, merged from small files.
COMPACT_PREFIX = "compact-"

#: The folders of a run's rows, in the order of publication: the row in `runs` comes last.
ROW_FOLDERS = ("metrics", "curves", "runs")


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFile:
    """A run's row as identified by its file name, so that listing a folder is enough."""

    run_id: str
    attempt: int
    outcome: Outcome

    def name_in(self, table: str) -> str:
        """Name of its file in a table's folder."""
        outcome = f"-{self.outcome}" if table == "runs" else ""
        return f"{self.run_id}-{self.attempt:03d}{outcome}.parquet"

    @classmethod
    def from_name(cls, name: str) -> "RowFile | None":
        """Parse a file name in runs; None for a foreign file."""
        parts = name.removesuffix(".parquet").split("-")
        try:
            run_id, attempt, outcome = parts
            return cls(run_id=run_id, attempt=int(attempt), outcome=Outcome(outcome))
        except ValueError:
            return None


def list_row_files(runs: Path) -> list[RowFile]:
    """The rows that have a file of their own in the runs folder."""
    names = os.listdir(runs)  # noqa: PTH208  names alone: 10,000 in milliseconds
    return [row for name in names if (row := RowFile.from_name(name))]


def archive_row(results: Path, row: RowFile) -> None:
    """Move a run's row and curve to those of earlier attempts."""
    superseded = results / "superseded"
    superseded.mkdir(exist_ok=True)
    for table in reversed(ROW_FOLDERS):  # the row first: without it, the rest is not read
        name, folder = row.name_in(table), superseded / table
        folder.mkdir(exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            (results / table / name).replace(folder / name)


def choose_current(rows: Iterable[RowFile]) -> dict[str, RowFile]:
    """The row of each run that counts, of several: a later attempt's end is final."""
    return {row.run_id: row for row in sorted(rows, key=lambda r: (r.attempt, r.outcome.is_result))}
