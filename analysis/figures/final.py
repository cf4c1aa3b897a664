"""The final metric: against the batch, and against the warmup."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figures import style
from analysis.figures.lines import draw_points
from analysis.figures.points import points, reading_note
from analysis.tables.comparable_runs import ComparableRuns
from analysis.tables.metric import ACCURACY, Metric


def draw_against_batch(
    compared: ComparableRuns, metric: Metric = ACCURACY
) -> tuple[Figure, pd.DataFrame]:
    """The metric after the last epoch against the global batch, a line per warmup and lr rule."""
    figure, axes, frame = _draw(
        compared, metric, x="global_batch", by="warmup_epochs", unit="epochs warmup"
    )
    style.batch_axis(axes, sorted(frame["global_batch"].unique()))
    return figure, frame


def draw_against_warmup(
    compared: ComparableRuns, metric: Metric = ACCURACY
) -> tuple[Figure, pd.DataFrame]:
    """As `draw_against_batch`, against the warmup, a line per batch and lr rule."""
    figure, axes, frame = _draw(
        compared, metric, x="warmup_epochs", by="global_batch", unit="examples"
    )
    axes.set_xticks(sorted(frame["warmup_epochs"].unique()))
    axes.set_xlabel("warmup [epochs]")
    return figure, frame


def _draw(
    compared: ComparableRuns, metric: Metric, *, x: str, by: str, unit: str
) -> tuple[Figure, Axes, pd.DataFrame]:
    frame = points(compared.runs, metric.name)
    figure, (axes,) = style.new_figure()
    _draw_lines(axes, frame, x=x, by=by, unit=unit)
    style.value_axis(axes, metric, "last epoch")
    style.legend(figure, axes)
    name = {"global_batch": "batch", "warmup_epochs": "warmup"}[x]
    title = f"{style.title_word(metric)} against {name}: {compared.title}"
    style.titles(figure, title, compared.about, reading_note(frame))
    return figure, axes, frame


def _draw_lines(axes: Axes, frame: pd.DataFrame, *, x: str, by: str, unit: str) -> None:
    levels = sorted(frame[by].unique())
    rules = sorted(frame["lr_rule"].unique())
    for level, color in zip(levels, style.ordered_colors(len(levels)), strict=True):
        for i, rule in enumerate(rules):
            line = frame[(frame[by] == level) & (frame["lr_rule"] == rule)]
            if len(line):
                label = line_label(level, unit, rule, rules)
                draw_points(axes, line, x, color=color, linestyle=style.line_style(i), label=label)


def line_label(level: float, unit: str, rule: str, rules: Sequence[str]) -> str:
    """What a line is, in words; the lr rule only where there are several."""
    text = f"{level:,.12g} {unit}"
    return f"{text}, lr {rule}" if len(rules) > 1 else text
