"""Results folders into pandas frames: runs, curves, what modules logged, and what columns mean."""

import os
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel

from sweeper.console.results_folder import check_folder
from sweeper.spec.sentences import printable
from sweeper.store.publish import parse_as
from sweeper.store.schema import LATER, TABLES, arrow_schema, check_version
from sweeper.store.table_files import add_missing_columns, open_table

#: How often a folder is read again while its files keep changing.
_READINGS = 20

#: Files that are read into a table at a time, and the most threads that do so.
_SLICE, _MOST_THREADS = 64, 8

#: A file without these columns is not ours.
KEYS = ("run_id", "attempt")

#: Columns that are never null, of runs or of epochs.
NEVER_NULL = (
    *KEYS, "outcome", "global_batch", "warmup_epochs", "lr_rule", "seed", "epoch", "config_json",
)  # fmt: skip

#: Columns that hold fractions: a value outside 0 to 1 means that the file is something else.
FRACTIONS = ("val_accuracy", "best_val_accuracy", "train_accuracy")


_Group = dict[str, Any]


class _Named(BaseModel, extra="allow"):
    name: str


class _Schedule(BaseModel, extra="allow"):
    milestones: list[float] | None = None


class _Config(BaseModel):
    """The form of a row's config; rows of earlier versions may lack any key."""

    module: _Group | None = None
    data: _Group | None = None
    model: _Group | None = None
    optimizer: _Group | None = None
    lr_rule: _Named | None = None
    schedule: _Schedule | None = None
    trainer: _Group | None = None
    perturbation: _Group | None = None
    comm_hook: _Group | None = None
    incidental: list[str] | None = None


@dataclass(frozen=True, slots=True)
class Unread:
    """A file that was left out, and why."""

    path: Path
    why: str

    def __str__(self) -> str:
        return f"{self.path}: {self.why}"


def read_folder(folder: Path, wanted: Sequence[str]) -> tuple[pa.Table, list[Unread]]:
    """The rows of a folder named as its table, and the files that were left out.

    A file that is gone since the folder was listed has been superseded or merged into another,
    so the folder is read again: its rows would otherwise be missing.
    """
    whole = arrow_schema(TABLES[folder.name])  # wanted columns in the order of the files
    fields = [field for field in whole if field.name in wanted]
    schema = pa.schema(fields).with_metadata(whole.metadata)
    table, unread = _read_files(folder, schema)
    for _ in range(_READINGS):
        if all(os.path.lexists(left_out.path) for left_out in unread):
            break
        table, unread = _read_files(folder, schema)
    return table.select(list(wanted)), unread


def _read_files(folder: Path, schema: pa.Schema) -> tuple[pa.Table, list[Unread]]:
    """The parquet files of a folder, without those being written (dot and underscore names)."""
    names = sorted(os.listdir(folder)) if folder.is_dir() else []  # noqa: PTH208  10,000 in ms
    paths = [folder / n for n in names if n.endswith(".parquet") and n[0] not in "._"]
    slices = [paths[i : i + _SLICE] for i in range(0, len(paths), _SLICE)]
    with ThreadPoolExecutor(min(_MOST_THREADS, os.cpu_count() or 1)) as pool:
        parts = list(pool.map(partial(_read_slice, schema=schema), slices))
    tables = [schema.empty_table(), *(table for table, _ in parts)]
    unread = [left_out for _, several in parts for left_out in several]
    return pa.concat_tables(tables).combine_chunks(), unread


def _read_slice(paths: Sequence[Path], schema: pa.Schema) -> tuple[pa.Table, list[Unread]]:
    """Files as a single table: plain ones are checked together; if that fails, each by itself."""
    plain = [_read_plain(path, schema) for path in paths]
    tables: list[pa.Table] = [schema.empty_table()]
    unread: list[Unread] = []
    try:
        _check_rows(pa.concat_tables([schema.empty_table(), *filter(None, plain)]).combine_chunks())
        is_sound = True
    except ValueError:
        is_sound = False
    for path, table in zip(paths, plain, strict=True):
        if table and is_sound:
            tables.append(table)
            continue
        try:
            tables.append(_read_checked(path, schema))
        except (pa.ArrowException, OSError, ValueError) as error:
            text = printable((str(error).splitlines() or [type(error).__name__])[0])
            is_foreign = isinstance(error, pa.ArrowException | OSError)
            unread.append(Unread(path, f"it cannot be read ({text})" if is_foreign else text))
    return pa.concat_tables(tables).combine_chunks(), unread


def _read_plain(path: Path, schema: pa.Schema) -> pa.Table | None:
    """A file's columns if it has just this schema and version; None for any other file."""
    try:
        with open_table(path) as file:
            table = file.read(columns=schema.names)
    except (pa.ArrowException, OSError, ValueError):
        return None
    return table if table.schema.equals(schema, check_metadata=True) else None


def _check_rows(table: pa.Table) -> None:
    there = [name for name in NEVER_NULL if name in table.column_names]
    if lacking := [name for name in there if table.column(name).null_count]:
        msg = f"it has rows without {', '.join(lacking)}"
        raise ValueError(msg)
    configs: Any = []
    if "config_json" in table.column_names:  # seeds do not change their form
        texts: Any = table.column("config_json")
        configs = pc.replace_substring_regex(texts, r'"seed": \d+', '"seed": 0').unique()
    if not all(parse_as(_Config, text.as_py()) for text in configs):
        msg = "config_json of a row must be the config of a run"
        raise ValueError(msg)
    for name in FRACTIONS:
        if name not in table.column_names:
            continue
        values: Any = table.column(name)  # NaN and null are no fault
        outside: Any = pc.or_(pc.less(values, pa.scalar(0.0)), pc.greater(values, pa.scalar(1.0)))
        if pc.any(outside).as_py():
            msg = f"{name} must be a fraction from 0 to 1; the file has other values"
            raise ValueError(msg)


def _read_checked(path: Path, schema: pa.Schema) -> pa.Table:
    if path.stat().st_size == 0:
        msg = "the file is empty (0 bytes)"
        raise ValueError(msg)
    with open_table(path) as file:
        written = file.schema_arrow
        later = LATER & {*schema.names}  # a file without our keys is not ours: checked first
        for needed in (KEYS, [name for name in schema.names if name not in later]):
            if missing := [name for name in needed if name not in written.names]:
                msg = f"not a table of this program: no column {', '.join(missing)}"
                raise ValueError(msg)
            check_version(written.metadata)
        table = add_missing_columns(file.read(columns=schema.names), later)
        table = table.select(schema.names).cast(schema)
    _check_rows(table)
    return table


Folders = str | Path | Sequence[str | Path]

#: Outcomes that end a run for good; across folders such a row is preferred.
SETTLED = ("finished", "diverged")


class UnreadFile(UserWarning):
    """A file in a results folder was left out; the text says why."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """The rows of a table of results folders, and the files that were left out."""

    frame: pd.DataFrame
    unread: list[Unread]


def load_runs(results: Folders = "results", columns: Sequence[str] | None = None) -> pd.DataFrame:
    """The runs of results folders, a row per run.

    Of several attempts at a run the last counts; of the same run in several folders the row that
    finished or diverged, else the first. A point that shares another run's training has a row with
    its own settings and what that run measured.

    Args:
        results: the folder that `python -m sweeper` wrote, or several.
        columns: which columns of `sweeper.store.schema.RUNS`; all if None.

    Returns:
        a row per run: the columns, and `results` (the folder).

    Raises:
        ValueError: if a folder does not exist, or a column is unknown.
    """
    return _warn_unread(read_runs(results, columns))


def load_curves(results: Folders = "results", columns: Sequence[str] | None = None) -> pd.DataFrame:
    """The curves of the runs that `load_runs` returns, a row per run and epoch.

    Returns:
        a row per run and epoch, by run and epoch: the columns, and `results` (the folder).

    Raises:
        ValueError: if a folder does not exist, or a column is unknown.
    """
    runs = read_runs(results, ["outcome"])
    return _warn_unread(read_curves(results, runs.frame, columns))


def read_runs(results: Folders, columns: Sequence[str] | None = None) -> Loaded:
    """Like `load_runs`, but returning the skipped files instead of warning."""
    wanted = _wanted_columns("runs", columns, ("outcome", "lr_rule", "lr_series_hash"))
    table, unread = _read_folders(results, "runs", wanted)
    frame = _frame(table)
    settled = frame["outcome"].isin(SETTLED)
    order = frame.assign(_settled=settled, _place=frame["results"].cat.codes)
    order = order.sort_values(["results", "attempt"], ascending=[True, False], kind="stable")
    order = order.drop_duplicates(["results", "run_id"])
    order = order.sort_values(["_settled", "_place"], ascending=[False, True], kind="stable")
    unread += _list_other_rates(order)
    kept = order.drop_duplicates("run_id").index.sort_values()
    shown = ["results", *(wanted if columns is None else columns)]
    names = list(dict.fromkeys([*KEYS, "outcome", *shown]))
    runs = frame.loc[kept, names].reset_index(drop=True)
    return Loaded(runs, unread)


def _list_other_rates(rows: pd.DataFrame) -> Iterator[Unread]:
    """Rows of a run that was trained with other learning rates in the folder that counts.

    AdaScale's rates depend on rounded gradients, so they always differ.
    """
    told = rows[(rows["outcome"] == "finished") & (rows["lr_rule"] != "adascale")]
    told = told[told["lr_series_hash"].notna()]
    for run_id, same in told[told.duplicated("run_id", keep=False)].groupby("run_id"):
        folders, rates = (same[name].astype(str) for name in ("results", "lr_series_hash"))
        why = f"run {run_id} has other learning rates than in {folders.iloc[0]}, which counts"
        for folder in folders[rates != rates.iloc[0]]:
            yield Unread(Path(folder), why)


def read_curves(
    results: Folders, runs: pd.DataFrame, columns: Sequence[str] | None = None
) -> Loaded:
    """Like `load_curves`, for runs already read, also returning the skipped files."""
    wanted = _wanted_columns("curves", columns, ("epoch", "step"))
    table, unread = _read_folders(results, "curves", wanted)
    frame = _frame(_select_runs(table, runs))
    frame = frame.drop_duplicates(["results", *KEYS, "step"])
    return Loaded(frame.sort_values(["results", "run_id", "step"], ignore_index=True), unread)


def read_metrics(results: Folders, runs: pd.DataFrame) -> Loaded:
    """What the modules of runs already read have logged, a row per run, evaluation and name."""
    wanted = _wanted_columns("metrics", None, ())
    table, unread = _read_folders(results, "metrics", wanted)
    return Loaded(_frame(_select_runs(table, runs)), unread)


def _select_runs(table: pa.Table, runs: pd.DataFrame) -> pa.Table:
    """The rows of these runs and attempts."""
    keys = ["results", *KEYS]
    right = pa.Table.from_pandas(runs[keys].astype({"results": "str"}), preserve_index=False)
    right = right.cast(pa.schema([table.schema.field(name) for name in keys]))
    return table.join(right, keys, join_type="left semi")


def _read_folders(results: Folders, kind: str, wanted: list[str]) -> tuple[pa.Table, list[Unread]]:
    tables: list[pa.Table] = []
    unread: list[Unread] = []
    named = [results] if isinstance(results, str | Path) else results
    paths = [Path(folder) for folder in named]
    for folder in paths:
        check_folder(folder)
    for folder in paths:
        table, left_out = read_folder(folder / kind, wanted)
        place = pa.array([str(folder)] * table.num_rows, pa.string())
        tables.append(table.append_column("results", place))
        unread.extend(left_out)
    return pa.concat_tables(tables), unread


def _wanted_columns(kind: str, asked: Sequence[str] | None, needed: Sequence[str]) -> list[str]:
    columns = TABLES[kind]
    names = list(columns) if asked is None else asked
    unknown = [name for name in names if name not in columns and name != "results"]
    if unknown:
        known = ", ".join(sorted(columns))
        msg = f"columns must be among {known}; got {', '.join(unknown)}."
        raise ValueError(msg)
    used = dict.fromkeys([*KEYS, *needed, *names])
    return [name for name in used if name != "results"]


def _frame(table: pa.Table) -> pd.DataFrame:
    frame = table.set_column(
        table.column_names.index("results"),
        "results",
        pc.dictionary_encode(table.column("results")),
    ).to_pandas()
    for name in frame.columns:
        if pa.types.is_string(table.schema.field(name).type) and name != "results":
            texts = frame[name]  # of which pandas 2 makes "None" where there is none
            frame[name] = texts.astype("str").where(texts.notna())
    return frame


def _warn_unread(loaded: Loaded) -> pd.DataFrame:
    for unread in loaded.unread:
        warnings.warn(f"skipped {unread}", UnreadFile, stacklevel=3)
    return loaded.frame


def columns(table: str = "runs") -> pd.DataFrame:
    """The columns of a table of a results folder.

    Returns:
        a row per column, by its name: `type` and `meaning`.

    Raises:
        ValueError: if there is no such table.
    """
    if table not in TABLES:
        msg = f"table must be one of {', '.join(sorted(TABLES))}; got {table}."
        raise ValueError(msg)
    rows = [(name, str(kind), meaning) for name, (kind, meaning) in TABLES[table].items()]
    return pd.DataFrame(rows, columns=["column", "type", "meaning"]).set_index("column")
