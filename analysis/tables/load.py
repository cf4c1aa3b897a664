"""Results folders into pandas frames: the runs, and their curves."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from analysis.tables.files import KEYS, Unread, read_folder
from sweeper.store.schema import TABLES

Folders = str | Path | Sequence[str | Path]

#: Outcomes that end a run for good; across folders such a row is preferred.
SETTLED = ("finished", "diverged")


class UnreadFile(UserWarning):
    """A file in a results folder was left out; the text says why."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A table of one or more results folders.

    Attributes:
        frame: the rows.
        unread: the files that were left out.
    """

    frame: pd.DataFrame
    unread: list[Unread]


def load_runs(results: Folders = "results", columns: Sequence[str] | None = None) -> pd.DataFrame:
    """The runs of one or more results folders, one row per run.

    Of several attempts at a run the last counts; of the same run in several folders the one that
    finished or diverged, else the first. A point that shares another run's training has a row with
    its own settings and what that run measured.

    Args:
        results: the folder that `python -m sweeper` wrote, or several.
        columns: which columns of `sweeper.store.schema.RUNS`; all if None.

    Returns:
        One row per run: the columns, and `results` (the folder).

    Raises:
        ValueError: if a folder does not exist, or a column is unknown.
    """
    return _warned(read_runs(results, columns))


def load_curves(results: Folders = "results", columns: Sequence[str] | None = None) -> pd.DataFrame:
    """The curves of the runs that `load_runs` returns, one row per run and epoch.

    Args:
        results: the folder that `python -m sweeper` wrote, or several.
        columns: which columns of `sweeper.store.schema.CURVES`; all if None.

    Returns:
        One row per run and epoch, by run and epoch: the columns, and `results` (the folder).

    Raises:
        ValueError: if a folder does not exist, or a column is unknown.
    """
    runs = read_runs(results, ["outcome"])
    return _warned(read_curves(results, runs.frame, columns))


def read_runs(results: Folders, columns: Sequence[str] | None = None) -> Loaded:
    """Like `load_runs`, but returning the skipped files instead of warning."""
    wanted = _wanted("runs", columns, ("outcome",))
    table, unread = _read_folders(results, "runs", wanted)
    frame = _frame(table)
    settled = frame["outcome"].isin(SETTLED)
    order = frame.assign(_settled=settled, _place=frame["results"].cat.codes)
    order = order.sort_values(["results", "attempt"], ascending=[True, False], kind="stable")
    order = order.drop_duplicates(["results", "run_id"])
    order = order.sort_values(["_settled", "_place"], ascending=[False, True], kind="stable")
    kept = order.drop_duplicates("run_id").index.sort_values()
    shown = ["results", *(wanted if columns is None else columns)]
    names = list(dict.fromkeys([*KEYS, "outcome", *shown]))
    runs = frame.loc[kept, names].reset_index(drop=True)
    return Loaded(runs, unread)


def read_curves(
    results: Folders, runs: pd.DataFrame, columns: Sequence[str] | None = None
) -> Loaded:
    """Like `load_curves`, for runs already read, also returning the skipped files."""
    wanted = _wanted("curves", columns, ("epoch",))
    table, unread = _read_folders(results, "curves", wanted)
    frame = _frame(_of_runs(table, runs))
    frame = frame.drop_duplicates(["results", *KEYS, "epoch"])
    return Loaded(frame.sort_values(["results", "run_id", "epoch"], ignore_index=True), unread)


def read_metrics(results: Folders, runs: pd.DataFrame) -> Loaded:
    """What the modules of runs already read have logged, one row per run, epoch and name."""
    wanted = _wanted("metrics", None, ())
    table, unread = _read_folders(results, "metrics", wanted)
    return Loaded(_frame(_of_runs(table, runs)), unread)


def _of_runs(table: pa.Table, runs: pd.DataFrame) -> pa.Table:
    """The rows of these runs and attempts."""
    keys = ["results", *KEYS]
    right = pa.Table.from_pandas(runs[keys].astype({"results": "str"}), preserve_index=False)
    right = right.cast(pa.schema([table.schema.field(name) for name in keys]))
    return table.join(right, keys, join_type="left semi")


def folders(results: Folders) -> list[Path]:
    """The results folders as paths.

    Raises:
        ValueError: if one does not exist.
    """
    several = [results] if isinstance(results, str | Path) else results
    paths = [Path(folder) for folder in several]
    for path in paths:
        if not path.is_dir():
            msg = (
                f"results must be a folder that python -m sweeper wrote; got {path}, which does "
                "not exist. Run a sweep first, or name another folder."
            )
            raise ValueError(msg)
    return paths


def _read_folders(results: Folders, kind: str, wanted: list[str]) -> tuple[pa.Table, list[Unread]]:
    tables: list[pa.Table] = []
    unread: list[Unread] = []
    for folder in folders(results):
        table, left_out = read_folder(folder / kind, wanted)
        place = pa.array([str(folder)] * table.num_rows, pa.string())
        tables.append(table.append_column("results", place))
        unread.extend(left_out)
    return pa.concat_tables(tables), unread


def _wanted(kind: str, asked: Sequence[str] | None, needed: Sequence[str]) -> list[str]:
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


def _warned(loaded: Loaded) -> pd.DataFrame:
    for unread in loaded.unread:
        warnings.warn(f"skipped {unread}", UnreadFile, stacklevel=3)
    return loaded.frame
