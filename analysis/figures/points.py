"""Runs into points: the replicates of a batch, warmup and lr rule as a row, with intervals."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import stdtrit

from analysis.tables.comparable_runs import ComparableRuns, file_names, find_earliest
from analysis.tables.load import FRACTIONS
from sweeper.spec.sentences import several

Array = NDArray[np.float64]

_UPPER = 0.975

#: Values that differ by less than this fraction of their size are equal.
_ROUNDING = 1e-9


def add_intervals(frame: pd.DataFrame, count: Any, measure: str) -> pd.DataFrame:
    """Means with `low` and `high`, 95 % t intervals; for accuracies clipped to 0 to 1.

    Half an interval is ``t(n - 1) * sd / sqrt(n)``. It is nan for a single value, and for values
    that are all equal, such as saturated accuracies: they do not show how far off another value
    would be. An sd that is rounding alone becomes 0.
    """
    spread = frame["sd"].mask(frame["sd"] <= _ROUNDING * frame["mean"].abs(), 0.0)
    n = np.asarray(count, dtype=float)
    with np.errstate(invalid="ignore", divide="ignore"):
        half = stdtrit(n - 1, _UPPER) * spread / np.sqrt(n)
    half = half.where((n > 1) & (spread > 0))
    low, high = frame["mean"] - half, frame["mean"] + half
    if measure in FRACTIONS:
        low, high = low.clip(lower=0.0), high.clip(upper=1.0)
    return frame.assign(sd=spread, low=low, high=high)


#: A point is all of these; its replicates differ only in seed.
POINT = ["global_batch", "warmup_epochs", "lr_rule"]

#: With more seeds than this at a point their dots are a blot, and are not drawn.
_MOST_DOTS = 25
_MOST_NAMED = 3


def points(
    runs: pd.DataFrame, measure: str = "val_accuracy", by: Sequence[str] = POINT
) -> pd.DataFrame:
    """The replicates of each point, summarised.

    Runs that did not reach an end (out of memory, timed out, preempted, failed) have no measure
    and are only counted. Diverged runs are counted, and are not in the mean.

    Uses `outcome`, the columns of `by` and the measure.

    Returns:
        a row per point: `mean`, `sd`, `low` and `high` (95 % t interval of the mean, of
        accuracies within 0 and 1; null with a single seed, and where all measured the same),
        `num_finished`, `num_diverged`, `num_other`, `diverged_low` and `diverged_high`
        (95 % Wilson interval of the share of ended runs that diverged; null where none did), and
        `values` (of the finished replicates).
    """
    finished = runs["outcome"] == "finished"
    diverged = runs["outcome"] == "diverged"
    counted = runs[list(by)].assign(
        value=runs[measure].where(finished),
        finished=finished,
        diverged=diverged,
        other=~(finished | diverged),
    )
    frame = (
        counted.groupby(list(by), as_index=False, dropna=False)
        .agg(
            mean=("value", "mean"),
            sd=("value", "std"),
            num_finished=("finished", "sum"),
            num_diverged=("diverged", "sum"),
            num_other=("other", "sum"),
            values=("value", _list_known),
        )
        .sort_values(list(by), ignore_index=True)
    )
    frame = add_intervals(frame, frame["values"].map(len), measure)
    lost = frame.index[frame["num_diverged"] > 0]
    frame[["diverged_low", "diverged_high"]] = np.nan
    if len(lost):
        from analysis.stats.replicates import wilson_interval  # scipy.stats takes a second

        diverged = frame.loc[lost, "num_diverged"]
        ended = diverged + frame.loc[lost, "num_finished"]
        ends = [wilson_interval(*counts) for counts in zip(diverged, ended, strict=True)]
        frame.loc[lost, ["diverged_low", "diverged_high"]] = ends
    return frame


def _list_known(values: pd.Series) -> list[float]:
    return values.dropna().tolist()


def split_by_rule(compared: ComparableRuns) -> Iterator[ComparableRuns]:
    """The runs of each lr rule, which is in the title, and in the name if not begun first."""
    rules = sorted(compared.runs["lr_rule"].unique())
    first = compared.runs["lr_rule"].iloc[find_earliest(compared.runs)]
    names = file_names({rule: f"lr_rule={rule}" * (rule != first) for rule in rules})
    for rule in rules if len(rules) > 1 else ():
        runs = compared.runs[compared.runs["lr_rule"] == rule]
        name = "-".join(filter(None, [names[rule], compared.name]))
        yield replace(compared, runs=runs, title=f"{compared.title}, lr {rule}", name=name)
    if len(rules) == 1:
        yield compared


def has_dots(frame: pd.DataFrame) -> bool:
    """Whether the seeds of points are few enough to be drawn as dots."""
    return not len(frame) or frame["num_finished"].max() <= _MOST_DOTS


def reading_note(frame: pd.DataFrame) -> str:
    """How marks are to be read, with the number of seeds, what diverged and what is not drawn."""
    dots = "; small dots: seeds" if has_dots(frame) else ""
    is_alike = ((frame["values"].map(len) > 1) & frame["low"].isna()).any()
    bare = ", none where all seeds measured the same" * bool(is_alike)
    bare += ", cut at 100 %" * bool((frame["high"] == 1).any())
    bars = f"Marks: means over finished seeds ({{}} per point); bars: 95 % t intervals{bare}{dots}."
    return " ".join([_describe_seeds(frame, bars), *_describe_others(frame)])


def reading_note_of_curves(frame: pd.DataFrame, *, has_bands: bool) -> str:
    """The same for curves, from their points."""
    bands = "; bands: 95 % t intervals" if has_bands else ""
    lines = f"Lines: means over finished seeds ({{}} per point){bands}."
    thin = "Thin lines: means of runs that diverged; crosses at the foot: where the last ended."
    has_thin = frame["num_diverged"].any()
    return " ".join(
        [_describe_seeds(frame, lines), *([thin] if has_thin else []), *_describe_others(frame)]
    )


def _describe_seeds(frame: pd.DataFrame, note: str) -> str:
    seeds = frame["values"].map(len)
    seeds = seeds[seeds > 0]
    low, high = (int(seeds.min()), int(seeds.max())) if len(seeds) else (0, 0)
    if (low, high) == (1, 1):
        return "One seed per point: no interval."
    return note.format(f"{low}" if low == high else f"{low} to {high}")


def _describe_others(frame: pd.DataFrame) -> Iterator[str]:
    lost = frame[frame["num_diverged"] > 0]
    if len(lost):
        named = [_diverged(row) for _, row in lost.head(_MOST_NAMED).iterrows()]
        more = len(lost) - len(named)
        others = [f"{several(more, 'more point')} in the table"] if more else []
        yield f"Diverged and not in the means: {'; '.join([*named, *others])}."
    if other := int(frame["num_other"].sum()):
        runs = several(other, "run")
        yield f"Not drawn: {runs} without a result (out of memory, timed out, failed)."
    if bare := int(frame["num_finished"].sum() - frame["values"].map(len).sum()):
        yield f"Not drawn: {several(bare, 'run')} that finished without this metric."


def _diverged(row: pd.Series) -> str:
    words = {"global_batch": "batch {:,}", "warmup_epochs": "warmup {:g}", "lr_rule": "lr {}"}
    point = ", ".join(text.format(row[name]) for name, text in words.items() if name in row)
    return f"{point}: {row['num_diverged']} of {row['num_finished'] + row['num_diverged']}"
