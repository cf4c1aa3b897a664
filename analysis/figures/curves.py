"""The metric per epoch: a panel per batch, a line per warmup and lr rule, seeds as bands."""

import math
from typing import cast

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figures import style
from analysis.figures.final import line_label
from analysis.figures.lines import draw_curve
from analysis.figures.points import POINT, points, reading_note
from analysis.tables.comparable_runs import ComparableRuns
from analysis.tables.metric import ACCURACY, Metric


def curve_points(
    runs: pd.DataFrame, curves: pd.DataFrame, measure: str = "val_accuracy"
) -> pd.DataFrame:
    """The replicates of each point at each epoch, summarised.

    Uses `run_id`, `outcome` and the columns of `POINT` of the runs.

    Returns:
        One row per point, outcome (finished or diverged) and epoch: `mean`, `low`, `high`,
        `num_seeds`. Diverged runs are apart from finished ones.
    """
    ended = runs[runs["outcome"].isin(["finished", "diverged"])]
    joined = curves[["run_id", "epoch", measure]].merge(ended[["run_id", "outcome", *POINT]])
    return (
        joined.groupby([*POINT, "outcome", "epoch"], as_index=False)[measure]
        .agg(["mean", "min", "max", "count"])
        .rename(columns={"min": "low", "max": "high", "count": "num_seeds"})
        .sort_values([*POINT, "outcome", "epoch"], ignore_index=True)
    )


def draw_per_epoch(
    compared: ComparableRuns, curves: pd.DataFrame, metric: Metric = ACCURACY
) -> tuple[Figure, pd.DataFrame]:
    """The metric after each epoch."""
    frame = curve_points(compared.runs, curves, metric.name)
    batches = sorted(compared.runs["global_batch"].unique())
    columns = min(3, len(batches))
    rows = math.ceil(len(batches) / columns)
    figure, panels = style.new_figure(max(7.2, 4.1 * columns), 1.2 + 3.2 * rows, rows, columns)
    for axes, batch in zip(panels, batches, strict=False):
        axes.set_title(f"batch {batch:,}", fontsize=10)
        _draw_panel(axes, frame[frame["global_batch"] == batch], compared.runs)
        style.epoch_axis(axes)
    for axes in panels[len(batches) :]:
        axes.set_visible(False)
    for axes in panels[max(0, len(batches) - columns) : len(batches)]:
        axes.tick_params(labelbottom=True)
    style.value_axis(panels[0], metric)
    style.legend(figure, panels[0])
    note = reading_note(points(compared.runs, metric.name))
    title = f"{style.title_word(metric)} per epoch: {compared.title}"
    style.titles(figure, title, compared.about, note)
    return figure, frame


def _draw_panel(axes: Axes, frame: pd.DataFrame, runs: pd.DataFrame) -> None:
    warmups = sorted(runs["warmup_epochs"].unique())
    rules = sorted(runs["lr_rule"].unique())
    colors = dict(zip(warmups, style.ordered_colors(len(warmups)), strict=True))
    for key, line in frame.groupby(["warmup_epochs", "lr_rule"]):
        warmup, rule = cast("tuple[float, str]", key)
        label = line_label(warmup, "epochs warmup", rule, rules)
        linestyle = style.line_style(rules.index(rule))
        draw_curve(axes, line, color=colors[warmup], linestyle=linestyle, label=label)
