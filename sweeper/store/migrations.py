"""Tables of older files brought to the present schema, one version at a time.

Pure: tables in, tables out. Files themselves are never changed; they are migrated when read.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from sweeper.store.schema import SCHEMA_VERSION, TABLES, arrow_schema

#: A table of one version as the next version would have it.
Step = Callable[[pa.Table], pa.Table]


def file_version(metadata: Mapping[bytes, bytes] | None) -> int:
    """The schema version that a file's metadata states.

    Raises:
        ValueError: if it states none, or one that this program does not know.
    """
    stated = (metadata or {}).get(b"schema_version")
    if stated is None:
        msg = (
            "not a table of this program: its metadata has no schema_version. Programs that save "
            "a table anew drop it; read such a file with pandas."
        )
        raise ValueError(msg)
    text = stated.decode(errors="replace")
    version = int(text) if text.isdecimal() and text.isascii() else 0
    if not 1 <= version <= int(SCHEMA_VERSION):
        msg = (
            f"schema_version must be from 1 to {SCHEMA_VERSION}; got {text}. "
            "Read it with the program that wrote it, or a newer one."
        )
        raise ValueError(msg)
    return version


def to_present(table: pa.Table, kind: str, version: int) -> pa.Table:
    """A file's rows with the columns, types and meanings of the present schema.

    Args:
        table: all columns of the file; one that it lacks becomes null.
        kind: runs or curves.
        version: the version of the file.

    Raises:
        pa.ArrowException: if a column holds something else than the schema says.
    """
    for older in range(version, int(SCHEMA_VERSION)):
        table = STEPS[kind][older](table)
    schema = arrow_schema(TABLES[kind])
    arrays = [conformed(table, field.name, field.type) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def conformed(table: pa.Table, name: str, kind: pa.DataType) -> Any:
    """A column in the schema's type; null where the table lacks it."""
    if name not in table.column_names:
        return pa.array([None] * table.num_rows, kind)
    return table.column(name).cast(kind)


def _choices_by_name(runs: pa.Table) -> pa.Table:
    """1 to 2: optimizer, model and data by the name of the choice, and what a run is a twin of.

    The first files of version 1 have the class where one class serves many choices, and no
    `twin_of`; the config says both.
    """
    configs = [_config(text) for text in _texts(runs, "config_json")]
    for column in ("optimizer", "model", "data"):
        named = [(config.get(column) or {}).get("name") for config in configs]
        written = _texts(runs, column)
        shown = [name or before for name, before in zip(named, written, strict=True)]
        runs = _with_texts(runs, column, shown)
    return _with_texts(runs, "twin_of", [config.get("twin_of") for config in configs])


def _config(text: str | None) -> dict[str, Any]:
    config = json.loads(text or "{}")
    if not isinstance(config, dict):
        msg = f"config_json must hold a mapping; the file holds {text}"
        raise ValueError(msg)
    return config


def _texts(table: pa.Table, name: str) -> list[str | None]:
    if name not in table.column_names:
        return [None] * table.num_rows
    return table.column(name).cast(pa.string()).to_pylist()


def _with_texts(table: pa.Table, name: str, values: list[str | None]) -> pa.Table:
    if name in table.column_names:
        table = table.drop_columns([name])
    return table.append_column(name, pa.array(values, pa.string()))


def _as_it_is(table: pa.Table) -> pa.Table:
    """No column changed its meaning; new ones are null."""
    return table


#: For each table, by the version that a step starts from.
STEPS: dict[str, dict[int, Step]] = {
    "runs": {1: _choices_by_name, 2: _as_it_is},  # 3 has noise_scale
    "curves": {1: _as_it_is, 2: _as_it_is},  # 2 has distance_from_start; 3 has noise_scale
}
