"""Parquet files of one table into one Arrow table: what can be read, and the names of the rest."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sweeper.spec.sentences import printable
from sweeper.store.schema import LATER, TABLES, arrow_schema, check_version
from sweeper.store.table_files import add_missing_columns

#: How often a folder is read again while its files keep changing.
_READINGS = 20

#: Files that are read into one table at a time, and the most threads that do so.
_SLICE, _MOST_THREADS = 64, 8

#: A file without these columns is not one of ours.
KEYS = ("run_id", "attempt")

#: Columns that are never null, of runs or of epochs.
NEVER_NULL = (
    *KEYS, "outcome", "global_batch", "warmup_epochs", "lr_rule", "seed", "epoch", "config_json",
)  # fmt: skip

#: Columns that hold fractions: a value outside 0 to 1 means that the file is something else.
FRACTIONS = ("val_accuracy", "best_val_accuracy", "train_accuracy")


@dataclass(frozen=True, slots=True)
class Unread:
    """A file that was left out.

    Attributes:
        path: the file.
        why: in words.
    """

    path: Path
    why: str

    def __str__(self) -> str:
        return f"{self.path}: {self.why}"


def listing(folder: Path) -> list[Path]:
    """The parquet files of a folder, without those being written (dot and underscore names)."""
    if not folder.is_dir():
        return []
    names = sorted(os.listdir(folder))  # noqa: PTH208  names alone: 10,000 in milliseconds
    return [folder / n for n in names if n.endswith(".parquet") and n[0] not in "._"]


def read_folder(folder: Path, wanted: Sequence[str]) -> tuple[pa.Table, list[Unread]]:
    """Read the files of a folder, even while a sweep replaces and merges them.

    A file that is gone since the folder was listed has been superseded or merged into another,
    so the folder is read again: its rows would otherwise be missing.

    The folder has the name of its table, runs or curves. The keys must be among the wanted
    columns.

    Returns:
        The rows, and the files that were left out.
    """
    schema = _schema(folder.name, wanted)
    table, unread = _read_files(listing(folder), schema)
    for _ in range(_READINGS):
        if all(os.path.lexists(left_out.path) for left_out in unread):
            break
        table, unread = _read_files(listing(folder), schema)
    return table.select(list(wanted)), unread


def _read_files(paths: Sequence[Path], schema: pa.Schema) -> tuple[pa.Table, list[Unread]]:
    slices = [paths[i : i + _SLICE] for i in range(0, len(paths), _SLICE)]
    with ThreadPoolExecutor(min(_MOST_THREADS, os.cpu_count() or 1)) as pool:
        parts = list(pool.map(partial(_read_slice, schema=schema), slices))
    tables = [schema.empty_table(), *(table for table, _ in parts)]
    unread = [left_out for _, several in parts for left_out in several]
    return pa.concat_tables(tables).combine_chunks(), unread


def _schema(kind: str, wanted: Sequence[str]) -> pa.Schema:
    """The wanted columns in the order of the files, with the version in the metadata."""
    whole = arrow_schema(TABLES[kind])
    fields = [field for field in whole if field.name in wanted]
    return pa.schema(fields).with_metadata(whole.metadata)


def _read_slice(paths: Sequence[Path], schema: pa.Schema) -> tuple[pa.Table, list[Unread]]:
    """Files as one table: plain ones are checked together; if that fails, each by itself."""
    plain = [_read_plain(path, schema) for path in paths]
    tables: list[pa.Table] = [schema.empty_table()]
    unread: list[Unread] = []
    is_sound = _is_sound([table for table in plain if table])
    for path, table in zip(paths, plain, strict=True):
        if table and is_sound:
            tables.append(table)
            continue
        try:
            tables.append(_read_one(path, schema))
        except (pa.ArrowException, OSError, ValueError) as error:
            unread.append(Unread(path, _reason(error)))
    return pa.concat_tables(tables).combine_chunks(), unread


def _reason(error: Exception) -> str:
    """Why a file was left out, in our words or in those of the library that could not read it."""
    text = printable((str(error).splitlines() or [type(error).__name__])[0])
    is_foreign = isinstance(error, pa.ArrowException | OSError)
    return f"it cannot be read ({text})" if is_foreign else text


def _read_plain(path: Path, schema: pa.Schema) -> pa.Table | None:
    """A file's columns if it has just this schema and version; None for any other file."""
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            table = file.read(columns=schema.names)
    except (pa.ArrowException, OSError, ValueError):
        return None
    return table if table.schema.equals(schema, check_metadata=True) else None


def _is_sound(tables: Sequence[pa.Table]) -> bool:
    if not tables:
        return True
    try:
        _check_rows(pa.concat_tables(tables).combine_chunks())
    except ValueError:
        return False
    return True


def _check_rows(table: pa.Table) -> None:
    there = [name for name in NEVER_NULL if name in table.column_names]
    if lacking := [name for name in there if table.column(name).null_count]:
        msg = f"it has rows without {', '.join(lacking)}"
        raise ValueError(msg)
    for name in FRACTIONS:
        if name in table.column_names and _exceeds_fractions(table.column(name)):
            msg = f"{name} must be a fraction from 0 to 1; the file has other values"
            raise ValueError(msg)


def _exceeds_fractions(values: Any) -> bool:
    """Whether any value is outside of 0 to 1; NaN and null are not."""
    outside: Any = pc.or_(pc.less(values, pa.scalar(0.0)), pc.greater(values, pa.scalar(1.0)))
    return bool(pc.any(outside).as_py())


def _read_one(path: Path, schema: pa.Schema) -> pa.Table:
    if path.stat().st_size == 0:
        msg = "the file is empty (0 bytes)"
        raise ValueError(msg)
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        written = file.schema_arrow
        _check_columns(KEYS, written.names)
        check_version(written.metadata)
        later = LATER & {*schema.names}
        _check_columns([name for name in schema.names if name not in later], written.names)
        table = add_missing_columns(file.read(columns=schema.names), later)
        table = table.select(schema.names).cast(schema)
    _check_rows(table)
    return table


def _check_columns(needed: Sequence[str], names: Sequence[str]) -> None:
    if missing := [name for name in needed if name not in names]:
        msg = f"not a table of this program: no column {', '.join(missing)}"
        raise ValueError(msg)
