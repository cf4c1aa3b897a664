"""The outcome of every run: immutable files published by rename, each with a single writer.

    results/runs/<run_id>-<attempt>-<outcome>.parquet   one row: the run's current attempt
    results/curves/<run_id>-<attempt>.parquet           one row per epoch of that attempt
    results/metrics/<run_id>-<attempt>.parquet          one row per epoch and logged name, if any
    results/superseded/                                 the same tables for earlier attempts
    results/attempts/<run_id>/                          checkpoint, and a folder per attempt
    results/active/<run_id>-<attempt>                   a mark for each running attempt
    results/trunks/                                     checkpoints that several lengths share
    results/damaged/                                    files that were found damaged
    results/runs/compact-*.parquet, and other tables    many rows, merged from small files

Plain pandas reads runs and curves; a listing of runs alone says how each run ended.
"""

import contextlib
import os
import stat
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from sweeper.spec.outcomes import Outcome
from sweeper.spec.sentences import format_value
from sweeper.store.file_names import (
    COMPACT_PREFIX,
    RowFile,
    archive_row,
    choose_current,
    list_row_files,
)
from sweeper.store.publish import note_unread

_COMPACT = COMPACT_PREFIX.rstrip("-")


class Ledger:
    """A results folder, which is created when the first run starts."""

    def __init__(self, results: Path) -> None:
        self.results = results
        self._runs, self._curves = results / "runs", results / "curves"
        self._active = results / "active"

    @classmethod
    def from_setting(cls, results: object) -> "Ledger":
        """The ledger that `results` names; ValueError if it cannot be the path of a folder."""
        reason = ""
        if not isinstance(results, str):
            msg = f"results must be a string; got results={format_value(results)}."
            raise ValueError(msg)
        if results.strip():
            try:
                if stat.S_ISDIR(os.stat(results).st_mode):  # noqa: PTH116  a path may be invalid
                    return cls(Path(results))
                reason = ", which is a file"
            except FileNotFoundError:  # it can probably be made
                return cls(Path(results))
            except (OSError, ValueError) as error:
                reason = f" ({getattr(error, 'strerror', None) or error})"
        msg = (
            f"results must be the path of a folder; got results={results!r}{reason}. "
            "Write results=FOLDER."
        )
        raise ValueError(msg)

    def prepare(self) -> None:
        """Create the folders; ValueError if they cannot be written."""
        try:
            for folder in (self._runs, self._curves, self._active, self.results / "attempts"):
                folder.mkdir(parents=True, exist_ok=True)
            probe = self.results / ".probe"
            probe.touch()
            probe.unlink(missing_ok=True)
        except OSError as error:
            msg = (
                f"results must be a folder that can be written; got results={self.results}: "
                f"{error.strerror} ({error.filename}). Choose another with results=FOLDER."
            )
            raise ValueError(msg) from error

    def ended(self, *, ignored: Collection[str] = ()) -> dict[str, RowFile]:
        """The current row of each run, from one listing and the merged files.

        Files with ignored names do not count.
        """
        if not self._runs.is_dir():
            return {}
        names = os.listdir(self._runs)  # noqa: PTH208  names alone: 10,000 in milliseconds
        names = [name for name in names if name not in ignored]
        found = [row for name in names if (row := RowFile.from_name(name))]
        if any(name.startswith(COMPACT_PREFIX) for name in names):
            from sweeper.store.compaction import read_merged  # pyarrow: 0.2 s

            found += read_merged(self.results, ignored=ignored)
        return choose_current(found)

    def num_small_files(self) -> int:
        """Number of settled runs whose rows are not merged [count]."""
        return sum(row.outcome.is_result for row in list_row_files(self._runs))

    def rows(self, run_ids: Collection[str], columns: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Some columns of the current rows of these runs."""
        from sweeper.store.table_files import read_rows  # pyarrow: 0.2 s

        found: dict[str, dict[str, Any]] = {}
        names = ["run_id", "attempt", *columns]
        for path in sorted(self._runs.glob("*.parquet")):
            own = RowFile.from_name(path.name)
            if own and own.run_id not in run_ids:
                continue
            for row in read_rows(path, names):
                before = found.get(row["run_id"])
                if row["run_id"] in run_ids and (not before or before["attempt"] < row["attempt"]):
                    found[row["run_id"]] = row
        return found

    def measured(self, run_ids: Collection[str], names: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Outcome, reason and measured values of these runs: columns, or what modules logged."""
        rows = self.rows(run_ids, ["outcome", "reason", *names])
        lacking = {(run_id, n) for run_id, row in rows.items() for n in names if row[n] is None}
        for logged in self._read_logged({run_id for run_id, _ in lacking}, names):
            row, name = rows[logged["run_id"]], logged["name"]
            if row["attempt"] == logged["attempt"] and (row["run_id"], name) in lacking:
                row[name] = logged["value"]
        return rows

    def _read_logged(self, run_ids: Collection[str], names: Sequence[str]) -> list[dict[str, Any]]:
        """Values that the modules of these runs logged under these names, by step."""
        from sweeper.store.table_files import read_logged  # pyarrow: 0.2 s

        paths = (self.results / "metrics").glob("*.parquet") if run_ids else ()
        ours = [p for p in paths if p.name.partition("-")[0] in {*run_ids, _COMPACT}]
        rows = [row for path in ours for row in read_logged(path, run_ids, names)]
        return sorted(rows, key=lambda row: row["step"])

    def run_folder(self, run_id: str) -> Path:
        """Where a run keeps its checkpoint and its attempts."""
        return self.results / "attempts" / run_id

    def attempt_folder(self, run_id: str, attempt: int) -> Path:
        """Where an attempt keeps its config, log and progress."""
        return self.run_folder(run_id) / f"{attempt:03d}"

    def last_attempt(self, run_id: str) -> int:
        """The number of the latest attempt; 0 if there is none."""
        try:
            names = os.listdir(self.run_folder(run_id))  # noqa: PTH208  names alone
        except FileNotFoundError:
            return 0
        except OSError:  # such as a loop of links
            note_unread(self.run_folder(run_id))
            return 0
        return max((int(name) for name in names if name.isdigit()), default=0)

    def mark_active(self, run_id: str, attempt: int) -> None:
        """Note that an attempt is running."""
        (self._active / f"{run_id}-{attempt:03d}").touch()

    def mark_inactive(self, run_id: str, attempt: int) -> None:
        """Note that an attempt is over."""
        with contextlib.suppress(FileNotFoundError, IsADirectoryError):  # damage: a folder
            (self._active / f"{run_id}-{attempt:03d}").unlink()

    def active(self) -> list[tuple[str, int]]:
        """Run id and number of attempts marked as running; their holders may have died."""
        if not self._active.is_dir():
            return []
        marks = (path.name.partition("-") for path in self._active.iterdir())
        return sorted((run_id, int(number)) for run_id, _, number in marks if number.isdigit())

    def find_row(self, run_id: str, attempt: int) -> RowFile | None:
        """The row of an attempt, if it is its run's current one and not merged."""
        rows = (RowFile(run_id=run_id, attempt=attempt, outcome=outcome) for outcome in Outcome)
        return next((row for row in rows if (self._runs / row.name_in("runs")).exists()), None)

    def read_row(self, row: RowFile, columns: Sequence[str]) -> list[dict[str, Any]]:
        """Some columns of a row that is not merged; empty if it is damaged."""
        from sweeper.store.table_files import read_rows  # pyarrow: 0.2 s

        return read_rows(self._runs / row.name_in("runs"), columns)

    def mend(self) -> None:
        """Archive rows of earlier attempts, which earlier versions could leave behind."""
        own = list_row_files(self._runs) if self._runs.is_dir() else []
        current = self.ended()
        for row in own:
            last = current.get(row.run_id, row)
            if row != last and row.attempt <= last.attempt:  # others publish meanwhile
                archive_row(self.results, row)

    def publish(
        self,
        row: Mapping[str, Any],
        curve: Sequence[Mapping[str, Any]],
        *,
        within: Path | None = None,
        check: Callable[[], None] | None = None,
    ) -> RowFile:
        """Make an attempt the current one of its run, or archive it if a later attempt exists.

        The row appears last and atomically, so a run has a complete row or none. Row and curve have
        the columns of the runs and the curves table; `within` and `check` are those of
        `open_partial`. The names of earlier rows are known: searching for them would cost as much
        as there are runs.
        """
        from sweeper.store.table_files import write_rows  # pyarrow: 0.2 s

        now = RowFile(run_id=row["run_id"], attempt=row["attempt"], outcome=Outcome(row["outcome"]))
        how = {"within": within, "check": check}
        is_current = self.last_attempt(now.run_id) <= now.attempt
        root = self.results if is_current else self.results / "superseded"
        if not is_current:
            root.mkdir(exist_ok=True)
        for attempt in range(now.attempt, 0, -1) if is_current else ():
            before = self.find_row(now.run_id, attempt)
            if before and before != now:
                archive_row(self.results, before)
        keys = {"run_id": now.run_id, "attempt": now.attempt}
        metrics = [
            {**keys, "epoch": at["epoch"], "step": at["step"], "name": name, "value": value}
            for at in curve
            for name, value in at.get("metrics", {}).items()
        ]
        if metrics:
            write_rows(metrics, root / "metrics" / now.name_in("metrics"), **how)
        write_rows([{**keys, **at} for at in curve], root / "curves" / now.name_in("curves"), **how)
        write_rows([row], root / "runs" / now.name_in("runs"), **how)
        return now

    def supersede(self, run_ids: Collection[str]) -> None:
        """Archive the current rows of these runs, so that they can run again from the start."""
        from sweeper.store.compaction import unmerge_rows  # pyarrow: 0.2 s

        unmerge_rows(self.results, run_ids)
        for run_id, ended in self.ended().items():
            if run_id in run_ids:
                archive_row(self.results, ended)
        for path in self.results.glob("trunks/*/*-*.ckpt"):
            if path.stem.partition("-")[2] in run_ids:
                path.unlink(missing_ok=True)
