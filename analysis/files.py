"""Parquet files of one table into one Arrow table: what can be read, and the names of the rest."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from sweeper.schema import SCHEMA_VERSION, arrow_schema

Columns = Mapping[str, tuple[pa.DataType, str]]

#: A file without these columns is not one of ours.
KEYS = ("run_id", "attempt")

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


def read_files(
    paths: Sequence[Path], columns: Columns, wanted: Sequence[str]
) -> tuple[pa.Table, list[Unread]]:
    """Read all files at once; if any resists, read them one by one and name those that do.

    Args:
        paths: parquet files of one table.
        columns: the columns of the table; one that a file lacks is null there.
        wanted: which of them to read, the keys included.

    Returns:
        The rows, and the files that were left out.
    """
    schema = pa.schema([arrow_schema(dict(columns)).field(name) for name in wanted])
    if not paths:
        return schema.empty_table(), []
    try:
        source = ds.dataset([str(p) for p in paths], schema=schema, format="parquet")
        table = source.to_table()
        if _is_sound(table) and all(_is_current(f) for f in source.get_fragments()):
            return table, []
    except (pa.ArrowException, OSError, TypeError):
        pass
    return _read_one_by_one(paths, schema)


def _is_current(fragment: ds.Fragment) -> bool:
    metadata = fragment.physical_schema.metadata or {}
    return metadata.get(b"schema_version") == SCHEMA_VERSION.encode()


def _is_sound(table: pa.Table) -> bool:
    if any(table.column(key).null_count for key in KEYS):
        return False
    return not any(_has_other_than_fractions(table, name) for name in FRACTIONS)


def _has_other_than_fractions(table: pa.Table, name: str) -> bool:
    if name not in table.column_names or not table.num_rows:
        return False
    low, high = pc.min_max(table.column(name)).values()
    return low.is_valid and not (low.as_py() >= 0 and high.as_py() <= 1)


def _read_one_by_one(paths: Sequence[Path], schema: pa.Schema) -> tuple[pa.Table, list[Unread]]:
    tables: list[pa.Table] = []
    unread: list[Unread] = []
    for path in paths:
        try:
            tables.append(_read_one(path, schema))
        except (pa.ArrowException, OSError, ValueError) as error:
            unread.append(Unread(path, str(error).split("\n")[0]))
    return pa.concat_tables(tables) if tables else schema.empty_table(), unread


def _read_one(path: Path, schema: pa.Schema) -> pa.Table:
    if path.stat().st_size == 0:
        msg = "the file is empty (0 bytes)"
        raise ValueError(msg)
    file = pq.ParquetFile(path)
    _check_version(file.schema_arrow)
    present = [f.name for f in schema if f.name in file.schema_arrow.names]
    table = file.read(columns=present)
    filled = [_column(table, field.name, field.type) for field in schema]
    result = pa.table(filled, schema=schema)
    if not _is_sound(result):
        msg = "it has rows without run_id, or accuracies that are not fractions from 0 to 1"
        raise ValueError(msg)
    return result


def _check_version(schema: pa.Schema) -> None:
    missing = [key for key in KEYS if key not in schema.names]
    if missing:
        msg = f"not a table of this program: no column {', '.join(missing)}"
        raise ValueError(msg)
    version = (schema.metadata or {}).get(b"schema_version", SCHEMA_VERSION.encode()).decode()
    if not version.isdecimal() or int(version) > int(SCHEMA_VERSION):
        msg = (
            f"schema_version must be at most {SCHEMA_VERSION}; got {version}. "
            "Read it with the program that wrote it, or a newer one."
        )
        raise ValueError(msg)


def _column(table: pa.Table, name: str, kind: pa.DataType) -> Any:
    if name not in table.column_names:
        return pa.array([None] * table.num_rows, kind)
    return table.column(name).cast(kind)
