"""Parquet files with explicit schemas, published by rename so that readers see all or nothing.

Parquet's checksums cover pages of values. The footer, with the names, types and offsets of the
columns, has its checksum before it, where readers that do not know of it look for nothing.
"""

import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sweeper.store.publish import open_partial
from sweeper.store.schema import LATER, TABLES, arrow_schema, check_version

#: Raised when a file that is read is damaged or missing.
UNREADABLE = (OSError, ValueError, pa.ArrowException)


def write_rows(rows: Sequence[Mapping[str, Any]], path: Path, **how: Any) -> None:
    """Publish rows of the table that the folder is named after; missing columns are null.

    `how` is passed to `open_partial`.
    """
    schema = arrow_schema(TABLES[path.parent.name])
    write_table(pa.Table.from_pylist(list(rows), schema=schema), path, **how)


def write_table(table: pa.Table, path: Path, **how: Any) -> None:
    """Publish a table."""
    path.parent.mkdir(exist_ok=True)  # not its parents: the results folder may be away
    written = pa.BufferOutputStream()
    # Statistics and dictionaries would be most of a one-row file.
    pq.write_table(
        table,
        written,
        write_statistics=len(table) > 1,
        use_dictionary=len(table) > 1,
        write_page_checksum=True,
    )
    content = written.getvalue().to_pybytes()
    begin = _footer(content)
    with open_partial(path, **how) as partial:
        partial.write_bytes(content[:begin] + _checksum(content[begin:]) + content[begin:])


def open_table(path: Path) -> pq.ParquetFile:
    """Open a file; ValueError or OSError, here or as it is read, if it does not match a checksum.

    A file of an earlier version, or of another program, has no checksum of its footer.
    """
    content = path.read_bytes()
    begin = max(0, _footer(content))
    stated, found = content[:begin][-_LENGTH:], _checksum(content[begin:])
    if stated != found and stated.startswith(_MARK):
        msg = "its footer does not match its checksum"
        raise ValueError(msg)
    # Not Python's memory: a thread of Arrow that frees it while Python exits aborts the process
    # (apache/arrow#34314).
    arrows = pa.allocate_buffer(len(content))
    memoryview(arrows).cast("B")[:] = content
    return pq.ParquetFile(pa.BufferReader(arrows), page_checksum_verification=True)


_MARK = b"sweeper "
_LENGTH = len(_MARK) + 4


def _checksum(footer: bytes) -> bytes:
    return _MARK + zlib.crc32(footer).to_bytes(4, "little")


def _footer(content: bytes) -> int:
    """Where a file's footer begins: its length stands before the last four bytes."""
    return len(content) - 8 - int.from_bytes(content[-8:-4], "little")


@cache
def is_sound(path: Path, modified_ns: int) -> bool:
    """Whether a whole file can be read and all its pages match their checksums.

    A file of this modification time is read once per process. OSError if it is missing, or if the
    file system refuses to read it.
    """
    del modified_ns
    try:
        with open_table(path) as file:
            file.read().validate(full=True)
    except UNREADABLE as error:
        if isinstance(error, OSError) and error.errno is not None:  # pyarrow's own errors have none
            raise
        return False
    return True


def read_rows(path: Path, columns: Sequence[str]) -> list[dict[str, Any]]:
    """Some columns of a file as rows; no rows if the file is damaged."""
    try:
        return read_columns(path, columns).to_pylist()
    except UNREADABLE:
        return []


def read_columns(path: Path, columns: Sequence[str]) -> pa.Table:
    """Some columns of a file; those that it lacks are null."""
    with open_table(path) as file:  # read_table would import pandas first
        present = file.schema_arrow.names
        table = file.read(columns=[name for name in columns if name in present])
    return add_missing_columns(table, columns).select(list(columns))


def add_missing_columns(table: pa.Table, names: Iterable[str]) -> pa.Table:
    """A table, with those of these columns that it lacks added as null."""
    for name in names:
        if name not in table.column_names:
            table = table.append_column(name, pa.nulls(len(table)))
    return table


def read_logged(path: Path, run_ids: Collection[str], names: Sequence[str]) -> list[dict[str, Any]]:
    """The rows of a metrics file for these runs and names; no rows if the file is damaged."""
    is_wanted = pc.field("run_id").isin([*run_ids]) & pc.field("name").isin([*names])
    with suppress(*UNREADABLE), open_table(path) as file:
        return file.read().filter(is_wanted).to_pylist()
    return []


def read_whole(path: Path, kind: str) -> pa.Table:
    """All rows of a table file, with every column in the type of the schema.

    ValueError if the file has another schema version or none, or lacks a column that is not in
    LATER; pa.ArrowException if a column cannot be cast to the type of the schema.
    """
    with open_table(path) as file:
        check_version(file.schema_arrow.metadata)
        schema = arrow_schema(TABLES[kind])
        table = add_missing_columns(file.read(columns=schema.names), LATER & {*schema.names})
        if missing := sorted({*schema.names} - {*table.column_names}):
            msg = f"a file of {kind} must have every column; {path} lacks {', '.join(missing)}."
            raise ValueError(msg)
        return table.select(schema.names).cast(schema)
