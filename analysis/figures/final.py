"""Final accuracy: against the batch, and against the warmup for each batch."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figures.points import points, reading_note
from analysis.figures.style import (
    DIVERGED,
    batch_axis,
    legend,
    line_style,
    new_figure,
    ordered_colors,
    percent_axis,
    titles,
)
from analysis.studies import Study


def draw_against_batch(study: Study) -> tuple[Figure, pd.DataFrame]:
    """Accuracy after the last epoch against the global batch, a line per warmup and lr rule.

    Args:
        study: runs to draw.

    Returns:
        The figure, and the frame that it draws.
    """
    frame = points(study.runs)
    figure, (axes,) = new_figure(7.2, 4.6)
    _draw_lines(axes, frame, x="global_batch", by="warmup_epochs", unit="epochs warmup")
    batch_axis(axes, sorted(frame["global_batch"].unique()))
    percent_axis(axes, "validation accuracy, last epoch")
    legend(figure, axes)
    titles(figure, f"Accuracy against batch: {study.title}", study.about, reading_note(frame))
    return figure, frame


def draw_against_warmup(study: Study) -> tuple[Figure, pd.DataFrame]:
    """Accuracy after the last epoch against the warmup, a line per batch and lr rule.

    Args:
        study: runs to draw.

    Returns:
        The figure, and the frame that it draws.
    """
    frame = points(study.runs)
    figure, (axes,) = new_figure(7.2, 4.6)
    _draw_lines(axes, frame, x="warmup_epochs", by="global_batch", unit="examples")
    axes.set_xticks(sorted(frame["warmup_epochs"].unique()))
    axes.set_xlabel("warmup [epochs]")
    percent_axis(axes, "validation accuracy, last epoch")
    legend(figure, axes)
    titles(figure, f"Accuracy against warmup: {study.title}", study.about, reading_note(frame))
    return figure, frame


def _draw_lines(axes: Axes, frame: pd.DataFrame, *, x: str, by: str, unit: str) -> None:
    levels = sorted(frame[by].unique())
    rules = sorted(frame["lr_rule"].unique())
    for level, color in zip(levels, ordered_colors(len(levels)), strict=True):
        for i, rule in enumerate(rules):
            line = frame[(frame[by] == level) & (frame["lr_rule"] == rule)]
            if len(line):
                label = line_label(level, unit, rule, rules)
                _draw_line(axes, line, x=x, color=color, style=line_style(i), label=label)


def _draw_line(
    axes: Axes, line: pd.DataFrame, *, x: str, color: str, style: str, label: str
) -> None:
    axes.plot(line[x], line["mean"], style, color=color, marker="o", markersize=4.5, label=label)
    axes.fill_between(line[x], line["low"], line["high"], color=color, alpha=0.18, linewidth=0)
    diverged = line[line["num_diverged"] > 0]
    place = axes.get_xaxis_transform()
    axes.scatter(
        diverged[x], [0.02] * len(diverged), marker="x", color=DIVERGED, transform=place, zorder=5
    )


def line_label(level: float, unit: str, rule: str, rules: Sequence[str]) -> str:
    """What a line is, in words; the lr rule only where there are several."""
    text = f"{level:,.12g} {unit}"
    return f"{text}, lr {rule}" if len(rules) > 1 else text
