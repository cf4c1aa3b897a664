"""Anyone's table of runs, a row per run: its columns by our words, its units, its wild rows."""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.tables.metric import Metric
from sweeper.spec.sentences import did_you_mean, several

#: What is said by each word, as frames of runs call it; a table may have either as its own names.
WORDS = {
    "batch": "global_batch", "lr": "peak_lr", "loss": "val_loss", "metric": "val_accuracy",
    "size": "size", "data": "data_seen", "seed": "seed", "steps": "steps_to_target",
    "examples": "examples_to_target", "epochs": "epochs_to_target", "warmup": "warmup_epochs",
    "outcome": "outcome", "run": "run_id",
}  # fmt: skip
NAMES = {"global_batch": "batch", "peak_lr": "rate", "size": "size", "data_seen": "data"}
CELL, SETTINGS = ("size", "data_seen"), ("global_batch", "peak_lr")
#: Of which a table without a loss or metric has one: how much training reached the target.
MEASURES = ("examples_to_target", "steps_to_target", "epochs_to_target")
_METRICS = ("val_loss", "val_accuracy")
#: Further columns that count in a table that has names like ours.
_OURS = ("warmup_steps", "warmup_examples")
_LARGEST = 1e18  # squares of larger ones overflow
#: By how many robust spreads a wild value is better than the middle one; the least spread.
_WILD, _LEAST_SPREAD = 10, 0.05
#: Share of batches below 1 from which on it is the unit that is wrong; rows that are named.
_MOST_WILD, _MOST_NAMED = 0.1, 5
_OUTCOMES = dict.fromkeys(("true", "1", "1.0", "yes", "diverged"), "diverged") | dict.fromkeys(
    ("false", "0", "0.0", "no", "finished", "nan", "none"), "finished"
)


@dataclass(frozen=True, slots=True)
class AnyTable:
    """Runs of a table.

    Attributes:
        name: of the table.
        runs: a row per run, with columns named as in `WORDS`, `seed` and `outcome`.
        metric: what runs are compared by; None of a table of examples to a target.
        further: settings that were named besides.
        units: of the words that have one.
        said: what was left out, in words.
    """

    name: str
    runs: pd.DataFrame
    metric: Metric | None
    further: list[str]
    units: Mapping[str, str]
    said: list[str]

    @property
    def cell(self) -> list[str]:
        """Which of size and data it has."""
        return [c for c in CELL if c in self.runs]

    @property
    def cell_words(self) -> str:
        """What `cell` is in words."""
        return " and ".join(NAMES[c] for c in self.cell)

    @property
    def measure(self) -> str:
        """Which of `MEASURES` it has; ValueError if none."""
        if found := next((name for name in MEASURES if name in self.runs), ""):
            return found
        msg = f"{self.name} must have examples, steps or epochs to a target; it has none."
        raise ValueError(msg)

    @property
    def reached(self) -> pd.DataFrame:
        """A table of examples to a target, as `to_target` returns it; epochs count as examples."""
        examples, others = self.runs[self.measure], {*MEASURES} & {*self.runs}
        examples *= self.runs["global_batch"] if self.measure == "steps_to_target" else 1.0
        return self.runs.drop(columns=["outcome", *others]).assign(
            examples_to_target=examples, reached_target=examples.notna()
        )


def read_table(source: Path | pd.DataFrame, columns: str = "", units: str = "") -> AnyTable:
    """Read a CSV or parquet table, or a frame, with a row per run; of several of a run the last.

    Args:
        source: the table.
        columns: `batch=bs lr=lr loss='smooth loss'`, with words of `WORDS` on the left, and
            `others=beta2,decay` for further settings; or a file that holds it. If empty, the
            columns are called so, or as in our results.
        units: what a number of a column stands for: `batch=2048tokens data=1e9tokens`.

    Raises:
        ValueError: for a file that is no table, a word or column that is not known, text among
            numbers, or batches below 1.
    """
    name = "the frame" if isinstance(source, pd.DataFrame) else f"{source}"
    frame = source if isinstance(source, pd.DataFrame) else _read_file(source)
    there = f"The columns are {', '.join(map(str, frame.columns))}."
    named, further = _name_columns(frame, columns, there)
    measure = next((c for c in (*_METRICS, *MEASURES) if c in named), None)
    if "global_batch" not in named or measure is None:
        msg = (
            f"{name} must have a batch, and a loss, a metric, or steps, examples or epochs to a "
            f"target. {there} Say which they are: --columns 'batch=COLUMN loss=COLUMN'."
        )
        raise ValueError(msg)
    runs = frame[[*named.values(), *further]].set_axis([*named, *further], axis=1)
    runs = runs.set_axis([f"row {i}" for i in range(1, len(runs) + 1)])
    if "run_id" in runs:
        runs = runs.drop_duplicates("run_id", keep="last").drop(columns="run_id")
    factors, shown = _read_units(units)
    for column in runs.columns.drop("outcome", errors="ignore"):
        numbers = _read_numbers(runs[column], column, named.get(column, column), there)
        runs[column] = numbers * factors.get(column, 1.0)
    said = runs.get("outcome", pd.Series("0", runs.index)).astype("str").str.lower()
    outcomes = said.map(_OUTCOMES)
    rule = "an outcome must be finished or diverged, false or true, 0 or 1, or nothing"
    _refuse(outcomes.isna(), said, rule, there)
    runs["outcome"] = outcomes.mask(runs[measure].isin([np.inf, -np.inf]), "diverged")
    runs, left_out = _drop_unusable(runs, measure, there)
    if runs.empty:
        msg = f"{name} must have runs; got none{''.join(f'; {said}' for said in left_out)}. {there}"
        raise ValueError(msg)
    if (runs["global_batch"] % 1 == 0).all():
        runs = runs.astype({"global_batch": "int64"})
    if "seed" not in runs:
        same = [c for c in (*CELL, *SETTINGS, "warmup_epochs", *further) if c in runs]
        runs = runs.assign(seed=runs.groupby(same).cumcount())
    metric = None
    if measure in _METRICS:
        label = str(named[measure]).replace("_", " ")
        metric = Metric(measure, "min" if measure == "val_loss" else "max", label)
    else:
        is_twice = runs.duplicated([c for c in (*CELL, "global_batch", "seed") if c in runs])
        _refuse(is_twice, runs["global_batch"], "each batch must have each seed once", there)
    return AnyTable(name, runs, metric, further, shown, left_out)


def _read_file(path: Path) -> pd.DataFrame:
    try:
        frame = pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)
    except ValueError as error:  # of pandas, Arrow and codecs: without the path
        why = str(error).splitlines()[0].rstrip(".")
        msg = f"{path} must be a whole CSV or parquet table; got: {why}. Save it again."
        raise ValueError(msg) from error
    first = str(frame.columns[0])
    if len(frame.columns) == 1 and (other := next((c for c in ";\t|" if c in first), "")):
        msg = (
            f"{path} must be separated by commas; got {other!r} between the columns "
            f"{', '.join(first.split(other))}. Save it with commas."
        )
        raise ValueError(msg)
    return frame


def _name_columns(
    frame: pd.DataFrame, columns: str, there: str
) -> tuple[dict[str, str], list[str]]:
    """The table's columns by ours, and further settings."""
    if not columns:
        pairs = {**{ours: word for word, ours in WORDS.items()}, **{c: c for c in _OURS}}
        known = {ours: [c for c in (ours, word) if c in frame] for ours, word in pairs.items()}
        return {ours: own[0] for ours, own in known.items() if own}, []
    text = Path(columns).read_text("utf-8") if Path(columns).is_file() else columns
    found, further = dict[str, str](), list[str]()
    words = (*WORDS, "others")
    for part in _split_words(text):
        word, _, column = part.partition("=")
        own = column.split(",") if word == "others" else [column]
        absent = [c for c in own if c not in frame]
        if absent or word not in words:
            is_word = word in words
            like = did_you_mean(*((absent[0], [*map(str, frame)]) if is_word else (word, words)))
            msg = (
                f"--columns must be words with a column that is there, as batch=bs; got {part}. "
                f"{like} {there} The words are {', '.join(words)}."
            )
            raise ValueError(msg.replace("  ", " "))
        further += own if word == "others" else []
        found |= {} if word == "others" else {WORDS[word]: column}
    return found, further


def _split_words(text: str) -> list[str]:
    try:
        return shlex.split(text, comments=True)
    except ValueError as error:
        msg = f"every quote must be closed; got {text}. Write it as loss='smooth loss'."
        raise ValueError(msg) from error


def _read_numbers(
    values: "pd.Series[Any]", column: str, called: str, there: str
) -> "pd.Series[Any]":
    """Numbers or nothing; above 0 but for seeds, metrics, warmups and further settings."""
    numbers, rule = pd.to_numeric(values, errors="coerce").astype(float), "numbers"
    is_bad = numbers.isna() & values.notna()
    if column in (*SETTINGS, *CELL, *MEASURES) and not is_bad.any():
        is_bad = (numbers <= 0) | (numbers >= _LARGEST)
        rule = f"numbers above 0 and below {_LARGEST:g}"
    _refuse(is_bad, values, f"the column {called} must hold {rule}, or nothing", there)
    return numbers


def _refuse(is_bad: "pd.Series[bool]", values: "pd.Series[Any]", rule: str, remedy: str) -> None:
    """ValueError if any of the rows is bad, with the first."""
    if is_bad.any():
        of = f"{is_bad.idxmax()} of {len(values)}, the first of {int(is_bad.sum())}"
        msg = f"{rule}; got {values[is_bad].iloc[0]} in {of}. {remedy}"
        raise ValueError(msg)


def _read_units(units: str) -> tuple[dict[str, float], dict[str, str]]:
    """By our columns, how much one of their numbers is; by words, the unit."""
    factors, shown = dict[str, float](), dict[str, str]()
    for part in _split_words(units):
        word, _, unit = part.partition("=")
        found = re.fullmatch(r"(\d*\.?\d*(?:e\+?\d+)?)([a-zA-Z]*)", unit)
        if word not in WORDS or not unit or not found:
            msg = f"--units must be words with a unit each, as batch=2048tokens; got {part}."
            raise ValueError(msg)
        factors[WORDS[word]], shown[word] = float(found[1] or 1), found[2]
    return factors, shown


def _drop_unusable(runs: pd.DataFrame, measure: str, there: str) -> tuple[pd.DataFrame, list[str]]:
    """Without rows that say nothing or cannot be right, and these in words."""
    is_wild = is_small = runs["global_batch"] < 1
    if is_small.mean() > _MOST_WILD:
        remedy = "Say what 1 is, as --units batch=1e6tokens, or name another column."
        _refuse(is_small, runs["global_batch"], "a batch must be 1 or more", f"{remedy} {there}")
    is_blank = runs[[c for c in (*CELL, *SETTINGS) if c in runs]].isna().any(axis=1)
    if measure in _METRICS:
        is_finished = runs["outcome"] == "finished"
        known = runs[measure].where(is_finished) * (-1 if measure == "val_loss" else 1)
        if measure == "val_loss" and known.max() < 0:
            known = pd.Series(-np.log(-known.to_numpy(float)), runs.index)
        off = known - known.median()
        is_wild = is_small | (off / max(1.4826 * off.abs().median(), _LEAST_SPREAD) > _WILD)
        is_blank |= runs[measure].isna() & is_finished
    wild, said = runs[is_wild], list[str]()
    for row, batch, value in zip(wild.index, wild["global_batch"], wild[measure], strict=True):
        why = "a batch below 1" if batch < 1 else "better than the others by far"
        shown = f"batch {batch:g}, {measure.partition('_')[2]} {value:g}"
        said.append(f"left out as wild: {row} ({shown}), {why}")
    if more := said[_MOST_NAMED:]:
        said[_MOST_NAMED:] = [f"left out as wild: {several(len(more), 'more row')}"]
    if count := int((is_blank & ~is_wild).sum()):
        said.append(f"left out: {several(count, 'row')} with nothing in a column that is needed")
    return runs[~is_wild & ~is_blank], said
