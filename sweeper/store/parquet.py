"""Parquet files with explicit schemas, published by rename; for readers that see all or nothing."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sweeper.store.publish import publishing
from sweeper.store.schema import LATER, TABLES, arrow_schema, check_version

#: Raised when a damaged file is read, or one that is gone.
UNREADABLE = (OSError, ValueError, pa.ArrowException)


def write_rows(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Publish rows of the table in whose folder they are; columns that a row lacks are null."""
    schema = arrow_schema(TABLES[path.parent.name])
    write_table(pa.Table.from_pylist(list(rows), schema=schema), path)


def write_table(table: pa.Table, path: Path) -> None:
    """Publish a table."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with publishing(path) as partial:
        # Statistics and dictionaries would be most of a one-row file.
        pq.write_table(
            table,
            partial,
            write_statistics=len(table) > 1,
            use_dictionary=len(table) > 1,
            write_page_checksum=True,
        )


def open_table(path: Path) -> pq.ParquetFile:
    """A file to read from; OSError if a checksum shows that a page was damaged."""
    return pq.ParquetFile(path, page_checksum_verification=True)


def is_sound(path: Path) -> bool:
    """Whether a file can be read whole, with the checksums of its pages.

    OSError if it is gone, or the file system does not let it be read.
    """
    try:
        with open_table(path) as file:
            file.read().validate(full=True)
    except UNREADABLE as error:
        if isinstance(error, OSError) and error.errno is not None:  # pyarrow's own have none
            raise
        return False
    return True


def read_rows(path: Path, columns: Sequence[str]) -> list[dict[str, Any]]:
    """Some columns of one file by row; none of a file that is damaged."""
    try:
        return read_columns(path, columns).to_pylist()
    except UNREADABLE:
        return []


def read_columns(path: Path, columns: Sequence[str]) -> pa.Table:
    """Some columns of one file; a file that lacks one has it null."""
    with open_table(path) as file:  # read_table would import pandas first
        present = file.schema_arrow.names
        table = file.read(columns=[name for name in columns if name in present])
    return with_nulls(table, columns).select(list(columns))


def with_nulls(table: pa.Table, names: Iterable[str]) -> pa.Table:
    """A table with those of these columns that it lacks, all null."""
    for name in names:
        if name not in table.column_names:
            table = table.append_column(name, pa.nulls(len(table)))
    return table


def read_logged(path: Path, run_ids: Collection[str], names: Sequence[str]) -> list[dict[str, Any]]:
    """The rows of a file of metrics that are of these runs and names; none of a damaged file."""
    is_wanted = pc.field("run_id").isin([*run_ids]) & pc.field("name").isin([*names])
    with suppress(*UNREADABLE):
        return pq.read_table(path, filters=is_wanted, page_checksum_verification=True).to_pylist()
    return []


def read_elapsed(path: Path, run_ids: Collection[str]) -> list[dict[str, Any]]:
    """Of each attempt at these runs in a file of curves, the seconds by its last epoch."""
    ends: dict[tuple[str, int], float] = {}  # by hand: pyarrow's filters would import pandas first
    for row in read_rows(path, ["run_id", "attempt", "elapsed_s"]):
        run_id, attempt, elapsed_s = row.values()
        if run_id in run_ids and elapsed_s is not None:
            ends[run_id, attempt] = max(elapsed_s, ends.get((run_id, attempt), 0.0))
    return [{"run_id": id, "attempt": n, "elapsed_s": s} for (id, n), s in ends.items()]


def read_whole(path: Path, kind: str) -> pa.Table:
    """All rows of a file of runs or curves, every column in the type that the schema says.

    ValueError if the file is of another schema version or of none, or lacks a column,
    pa.ArrowException if a column holds something else than the schema says.
    """
    with open_table(path) as file:
        check_version(file.schema_arrow.metadata)
        schema = arrow_schema(TABLES[kind])
        table = with_nulls(file.read(columns=schema.names), LATER & {*schema.names})
        if missing := sorted({*schema.names} - {*table.column_names}):
            msg = f"a file of {kind} must have every column; {path} lacks {', '.join(missing)}."
            raise ValueError(msg)
        return table.select(schema.names).cast(schema)
