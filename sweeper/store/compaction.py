"""Merging many small files into one while others read and write: `sweeper compact`.

Only settled runs (finished, diverged) are merged: no later attempt replaces them, unless the user
starts over with `rerun=all`. The merged file is published before the small ones are removed; in
between, a plain reader sees rows twice, but our own readers do not.
"""

import contextlib
import uuid
from collections.abc import Collection, Generator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from sweeper.spec.outcomes import Outcome
from sweeper.store.file_names import (
    COMPACT_PREFIX,
    ROW_FOLDERS,
    RowFile,
    archive_row,
    choose_current,
    list_row_files,
)
from sweeper.store.lease import holds, lock, unlock
from sweeper.store.table_files import UNREADABLE, open_table, read_rows, read_whole, write_table

_LOCK = ".compacting"


def compact(results: Path) -> int:
    """Merge the small files of settled runs; the number merged, 0 if another process is merging."""
    with _lock_merging(results) as is_ours:
        if not is_ours:
            return 0
        _mend(results)
        _finish_removals(results)
        read: dict[RowFile, dict[str, pa.Table]] = {}
        for row in list_row_files(results / "runs"):
            if not row.outcome.is_result:
                continue
            paths = {table: results / table / row.name_in(table) for table in ROW_FOLDERS}
            # Files that are damaged or of another version stay as they are.
            with contextlib.suppress(*UNREADABLE):
                read[row] = {
                    table: read_whole(path, table)
                    for table, path in paths.items()
                    if path.exists() or table != "metrics"
                }
        if len(read) < 2:
            return 0
        name = f"{COMPACT_PREFIX}{uuid.uuid4().hex[:12]}.parquet"
        for table in ROW_FOLDERS:
            of_runs = [tables[table] for tables in read.values() if table in tables]
            if of_runs:
                write_table(pa.concat_tables(of_runs), results / table / name)
        for row in read if holds(results / _LOCK) else ():
            _remove(results, row)
        return len(read)


def _mend(results: Path) -> None:
    """Archive rows of earlier attempts beside a later one's, merged ones too."""
    merged, own = read_merged(results), list_row_files(results / "runs")
    current = choose_current([*merged, *own])  # others publish meanwhile
    late = [row for row in merged if row != current[row.run_id]]
    _unmerge(results, {row.run_id for row in late})
    for row in (*late, *own):
        if row != current[row.run_id]:
            archive_row(results, row)


def read_merged(results: Path, *, ignored: Collection[str] = ()) -> list[RowFile]:
    """The readable rows of the merged files, except files with ignored names."""
    rows: list[RowFile] = []
    for path in sorted((results / "runs").glob(f"{COMPACT_PREFIX}*.parquet")):
        if path.name in ignored:
            continue
        stated = read_rows(path, ["run_id", "attempt", "outcome"])
        found = (RowFile.from_name("-".join(map(str, row.values()))) for row in stated)
        rows += [row for row in found if row]
    return rows


def unmerge_rows(results: Path, run_ids: Collection[str]) -> None:
    """Move the merged rows of these runs back into files of their own."""
    if not any(row.run_id in run_ids for row in read_merged(results)):
        return
    with _lock_merging(results) as is_ours:
        if not is_ours:
            msg = f"another process is merging files in {results}; repeat the command in a moment."
            raise ValueError(msg)
        _unmerge(results, run_ids)


def _unmerge(results: Path, run_ids: Collection[str]) -> None:
    for merged in sorted((results / "runs").glob(f"{COMPACT_PREFIX}*.parquet")) if run_ids else ():
        _split(results, merged.name, run_ids)


def _split(results: Path, name: str, run_ids: Collection[str]) -> None:
    wanted = pa.array(sorted(run_ids))
    paths = {table: results / table / name for table in ROW_FOLDERS}
    merged: dict[str, pa.Table] = {}
    for table, path in paths.items():
        if path.exists():
            with open_table(path) as file:
                merged[table] = file.read()
    runs = merged["runs"]
    for row in runs.filter(pc.is_in(runs["run_id"], wanted)).to_pylist():
        file = RowFile(
            run_id=row["run_id"], attempt=row["attempt"], outcome=Outcome(row["outcome"])
        )
        only = (pc.field("run_id") == file.run_id) & (pc.field("attempt") == file.attempt)
        for table, rows in merged.items():
            if len(its := rows.filter(only)) or table != "metrics":
                write_table(its, results / table / file.name_in(table))
    for table, rows in reversed(merged.items()):  # the rows first, as in `_remove`
        kept = rows.filter(pc.invert(pc.is_in(rows["run_id"], wanted)))
        if len(kept):
            write_table(kept, results / table / name)
        else:
            (results / table / name).unlink(missing_ok=True)


def _finish_removals(results: Path) -> None:
    """Remove small files whose rows are already merged: an earlier merge was interrupted."""
    for row in set(read_merged(results)) & set(list_row_files(results / "runs")):
        _remove(results, row)
    merged_runs = {path.name for path in (results / "runs").glob(f"{COMPACT_PREFIX}*")}
    for table in ("curves", "metrics"):
        for path in (results / table).glob(f"{COMPACT_PREFIX}*"):
            if path.name not in merged_runs:
                path.unlink(missing_ok=True)


def _remove(results: Path, row: RowFile) -> None:
    for table in reversed(ROW_FOLDERS):  # the row first: without it, the rest is not read
        (results / table / row.name_in(table)).unlink(missing_ok=True)


@contextlib.contextmanager
def _lock_merging(results: Path) -> Generator[bool]:
    """Hold the lock for merging, if it is free; gives whether this process has it."""
    is_ours = lock(results / _LOCK)
    try:
        yield is_ours
    finally:
        if is_ours:
            unlock(results / _LOCK)
