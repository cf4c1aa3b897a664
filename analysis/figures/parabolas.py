"""The parabolas behind the best warmup or learning rate of each batch."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from analysis.figures import style
from analysis.figures.final import CUT, RATES, WARMUPS, Axis
from analysis.figures.points import points
from analysis.figures.sheet import Drawing, Given, Sheet
from analysis.figures.style import Scale, Width
from analysis.stats.optimum import Optima, best_lrs, best_warmups
from analysis.stats.replicates import make_rng
from analysis.tables.comparable_runs import ComparableRuns, takes_frame
from analysis.tables.metric import ACCURACY, Metric

_FEWEST = 3  # settings of a batch for a parabola
_DRAWN = 60  # places of a curve


@takes_frame
@style.use_style()
def draw_best_warmups(
    compared: ComparableRuns, metric: Metric = ACCURACY, *, width: Width = "screen",
    ax: Given = None,
) -> Drawing | None:  # fmt: skip
    """The metric against the warmup with the fitted parabolas; a colour per batch.

    With `ax`, an axes per lr rule with three warmups at a batch, it is drawn into a figure of
    your own. None if there is no such rule.
    """
    return _draw(compared, metric, WARMUPS, best_warmups, width, ax)


@takes_frame
@style.use_style()
def draw_best_rates(
    compared: ComparableRuns, metric: Metric = ACCURACY, *, width: Width = "screen",
    ax: Given = None,
) -> Drawing | None:  # fmt: skip
    """As `draw_best_warmups`, against the peak learning rate, at the most common warmup.

    The runs may differ in `base_lr`: `group_comparable(runs, (*AXES, "base_lr"))`.
    """
    return _draw(compared, metric, RATES, best_lrs, width, ax)


def parabolas(optima: Optima, frame: pd.DataFrame, column: str, scale: Scale) -> pd.DataFrame:
    """The least-squares parabola at each batch of the estimate, weighted by replicates.

    ``metric = a + b * u + c * u**2``, u being the setting on its scale.

    Returns:
        a row per batch: `a`, `b`, `c`, and what `Optima.table` says of it.
    """
    rows: list[dict[str, Any]] = []
    used = frame[frame["num_finished"] >= min(2, frame["num_finished"].max())]
    for batch in optima.batches:
        points_of = used[used["global_batch"] == batch]
        u = scale.to(points_of[column].to_numpy(dtype=float))
        weights = np.sqrt(points_of["num_finished"].to_numpy(dtype=float))
        c, b, a = np.polyfit(u, points_of["mean"].to_numpy(dtype=float), 2, w=weights)
        rows.append({"a": a, "b": b, "c": c})
    return optima.table().join(pd.DataFrame(rows, columns=["a", "b", "c"]))


def _draw(
    compared: ComparableRuns, metric: Metric, of: Axis, estimate: Callable[..., Optima],
    width: Width, ax: Given,
) -> Drawing | None:  # fmt: skip
    runs = compared.runs
    if of is RATES:
        runs = runs[runs["warmup_epochs"] == runs["warmup_epochs"].mode()[0]]
    frame = points(runs, metric.name, ["global_batch", "lr_rule", of.column])
    counts = frame.dropna(subset=["mean"]).groupby(["lr_rule", "global_batch"]).size()
    rules = sorted(counts[counts >= _FEWEST].index.unique("lr_rule"))
    if not rules:
        return None
    frame = frame[frame["lr_rule"].isin(rules)]
    sheet = Sheet.new(width, ax, len(rules))
    settings = sorted(frame[of.column].unique())
    batches = sorted(frame["global_batch"].unique())
    marks = style.ordered_marks(len(batches))
    fits: list[pd.DataFrame] = []
    notes: list[str] = []
    for axes, rule in zip(sheet.panels, rules, strict=True):
        of_rule = frame[frame["lr_rule"] == rule]
        optima = estimate(runs[runs["lr_rule"] == rule], make_rng(), metric=metric)
        fit = parabolas(optima, of_rule, of.column, of.scale).assign(lr_rule=rule)
        fits.append(fit)
        notes += [f"lr {rule}: {optima.note}."] if optima.note else []
        of.draw(axes, settings)
        for batch, mark in zip(batches, marks, strict=True):
            line = of_rule[of_rule["global_batch"] == batch]
            place = line[of.column]  # on its curve, though bars of batches may overlap
            axes.vlines(
                place, line["low"], line["high"], color=mark.color, linewidth=0.6, alpha=0.6
            )
            axes.plot(place, line["mean"], " ", color=mark.color, marker=mark.marker,
                      markeredgewidth=0, label=f"{batch:,}")  # fmt: skip
            for _, row in fit[fit["global_batch"] == batch].iterrows():
                _draw_parabola(axes, row, line[of.column], of.scale, mark.color)
        if len(rules) > 1:
            axes.set_title(f"lr {rule}", parse_math=False)
        style.value_axis(axes, metric)
    seen = frame["mean"]
    cut = [style.value_limits(a, metric, seen, frame[["low", "high"]]) for a in sheet.panels]
    sheet.label(of.label_of(runs), style.value_label(metric))
    found = pd.concat(fits, ignore_index=True)
    title = f"Parabolas behind the best {of.word}: {compared.title}"
    words = [compared.about, _note(frame, found, of, notes) + (CUT if any(cut) else "")]
    table = frame.merge(
        found, how="left", on=["lr_rule", "global_batch"], suffixes=("", "_of_best")
    )
    return sheet.finish(table, title, words, "global batch [examples]")


_THICK = "; thick bars: its 95 % interval, within the grid"


def _draw_parabola(
    axes: Any, fit: pd.Series, settings: pd.Series, scale: Scale, color: str
) -> None:
    """The curve within the grid, its vertex as a ring, the interval of that as a thick bar."""
    low, high = settings.min(), settings.max()
    u = np.linspace(scale.to(low), scale.to(high), _DRAWN)

    def height(at: Any) -> Any:
        return fit["a"] + fit["b"] * at + fit["c"] * at**2

    axes.plot(scale.back(u), height(u), color=color, linewidth=0.8)
    if not fit["is_interior"]:
        return
    top = height(scale.to(fit["best"]))
    axes.plot([fit["best"]], [top], "o", color=color, markersize=5.5, markerfacecolor="none")
    ends = np.clip([fit["low"], fit["high"]], low, high)
    if np.isfinite(ends).all():
        axes.hlines(top, *ends, color=color, linewidth=2.2, alpha=0.45)


def _note(frame: pd.DataFrame, found: pd.DataFrame, of: Axis, notes: list[str]) -> str:
    bars = " with 95 % t intervals" if frame["low"].notna().any() else ""
    has_bars = found["low"].notna().any()
    note = (
        f"Marks: means over finished seeds{bars}; curves: parabolas by least squares on the axis' "
        f"scale; rings: best {of.word}{_THICK if has_bars else '; it has no interval'}."
    )
    edge = found[~found["is_interior"]]
    if len(edge):
        named = ", ".join(f"{batch:,}" for batch in sorted(edge["global_batch"].unique()))
        note += f" No ring, as no setting inside the grid is best: batch {named}."
    return " ".join([note, *notes])
