"""The responses behind the best warmup or learning rate of each batch."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from analysis.figures import style
from analysis.figures.final import CUT, RATES, WARMUPS, Axis
from analysis.figures.points import points
from analysis.figures.sheet import Drawing, Given, Sheet
from analysis.figures.style import Mark, Scale, Width
from analysis.stats.optimum import FEWEST_SETTINGS, Optima, best_lrs, best_warmups
from analysis.stats.replicates import make_rng
from analysis.tables.comparable_runs import ComparableRuns, takes_frame
from analysis.tables.metric import ACCURACY, Metric

_DRAWN = 60  # places of a curve


@takes_frame
@style.use_style()
def draw_best_warmups(
    compared: ComparableRuns, metric: Metric = ACCURACY, *, width: Width = "screen",
    ax: Given = None,
) -> Drawing | None:  # fmt: skip
    """The metric against the warmup with the response that is fitted; a colour per batch.

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


def _draw(
    compared: ComparableRuns, metric: Metric, of: Axis, estimate: Callable[..., Optima],
    width: Width, ax: Given,
) -> Drawing | None:  # fmt: skip
    runs = compared.runs
    if of is RATES:
        runs = runs[runs["warmup_epochs"] == runs["warmup_epochs"].mode()[0]]
    frame = points(runs, metric.name, ["global_batch", "lr_rule", of.column])
    counts = frame.dropna(subset=["mean"]).groupby(["lr_rule", "global_batch"]).size()
    rules = sorted(counts[counts >= FEWEST_SETTINGS].index.unique("lr_rule"))
    if not rules:
        return None
    frame = frame[frame["lr_rule"].isin(rules)].assign(fitted=np.nan)
    sheet = Sheet.new(width, ax, len(rules))
    settings = sorted(frame[of.column].unique())
    batches = sorted(frame["global_batch"].unique())
    marks = style.ordered_marks(len(batches))
    tables: list[pd.DataFrame] = []
    notes: list[str] = []
    for axes, rule in zip(sheet.panels, rules, strict=True):
        of_rule = frame[frame["lr_rule"] == rule]
        optima = estimate(runs[runs["lr_rule"] == rule], make_rng(), metric=metric)
        table = optima.table().assign(lr_rule=rule, height=np.nan)
        more = [optima.note, "" if optima.response else _NO_RESPONSE]
        notes += [f"lr {rule}: {note}." for note in more if note]
        of.draw(axes, settings)
        for batch, mark in zip(batches, marks, strict=True):
            line = of_rule[of_rule["global_batch"] == batch]
            place = line[of.column]  # on its curve, though bars of batches may overlap
            axes.vlines(
                place, line["low"], line["high"], color=mark.color, linewidth=0.6, alpha=0.6
            )
            axes.plot(place, line["mean"], " ", color=mark.color, marker=mark.marker,
                      markeredgewidth=0, label=f"{batch:,}")  # fmt: skip
            best = table[table["global_batch"] == batch]
            if len(best):
                height = _height(optima, batch, line.dropna(subset=["mean"]), of, metric)
                frame.loc[line.index, "fitted"] = height(place)
                is_ring = best.index[best["is_interior"]]
                table.loc[is_ring, "height"] = height(best["best"][is_ring])
                _draw_response(axes, height, table.loc[best.index[0]], place, of.scale, mark)
        tables.append(table)
        if len(rules) > 1:
            axes.set_title(f"lr {rule}", parse_math=False)
        style.value_axis(axes, metric)
    seen = pd.concat([frame["mean"], *(table["height"] for table in tables)])
    cut = [style.value_limits(a, metric, seen, frame[["low", "high"]]) for a in sheet.panels]
    sheet.label(of.label_of(runs), style.value_label(metric))
    found = pd.concat(tables, ignore_index=True)
    title = f"Responses behind the best {of.word}: {compared.title}"
    words = [compared.about, _note(frame, found, of, notes, metric) + (CUT if any(cut) else "")]
    table = frame.merge(
        found, how="left", on=["lr_rule", "global_batch"], suffixes=("", "_of_best")
    )
    return sheet.finish(table, title, words, "global batch [examples]")


_NO_RESPONSE = "lines join the means, as no one response can be fitted to all batches"


def _height(
    optima: Optima, batch: int, line: pd.DataFrame, of: Axis, metric: Metric
) -> Callable[[Any], Any]:
    """The fitted metric of a batch by the setting; between its means where there is no response."""

    def height(settings: Any) -> Any:
        to, response = of.scale.to, optima.response
        if response:
            places = np.asarray(to(settings), dtype=float)
            fitted = metric.sign * response.curve(batch, places)
            return np.clip(fitted, 0, 1) if metric.unit == "%" else fitted
        return np.interp(to(settings), to(line[of.column]), line["mean"])

    return height


def _draw_response(
    axes: Any, height: Callable[[Any], Any], best: pd.Series, settings: pd.Series, scale: Scale,
    mark: Mark,
) -> None:  # fmt: skip
    """The curve within the grid, its best as a ring, the interval of that as a thick bar."""
    low, high = settings.min(), settings.max()
    drawn = scale.back(np.linspace(scale.to(low), scale.to(high), _DRAWN))
    axes.plot(drawn, height(drawn), mark.linestyle, color=mark.color, linewidth=0.8)
    if not best["is_interior"]:
        return
    top = best["height"]
    axes.plot([best["best"]], [top], "o", color=mark.color, markersize=5.5, markerfacecolor="none")
    ends = np.clip([best["low"], best["high"]], low, high)
    if np.isfinite(ends).all():
        axes.hlines(top, *ends, color=mark.color, linewidth=2.2, alpha=0.45)


_THICK = "; thick bars: its 95 % interval, within the grid"


def _note(
    frame: pd.DataFrame, found: pd.DataFrame, of: Axis, notes: list[str], metric: Metric
) -> str:
    bars = " with 95 % t intervals" if frame["low"].notna().any() else ""
    thick = _THICK if found["low"].notna().any() else "; it has no interval"
    rings = f"; rings: best {of.word}{thick}" if found["is_interior"].any() else ""
    note = f"Marks: means over finished seeds{bars}; curves: one response for all batches, shifted"
    is_cut = metric.unit == "%" and (frame["fitted"].eq(1).any() or found["height"].eq(1).any())
    note += ", cut at 100 %" * bool(is_cut)
    note += f"{rings}."
    edge = found[~found["is_interior"]]
    if len(edge):
        named = ", ".join(f"{batch:,}" for batch in sorted(edge["global_batch"].unique()))
        note += f" No ring, as no setting inside the grid is best: batch {named}."
    return " ".join([note, *notes])
