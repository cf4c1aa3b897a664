"""Lines with bands: points along a quantity, and curves over epochs. No arithmetic."""

from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from analysis.figures import style

_BAND = 0.18


def draw_points(
    axes: Axes, line: pd.DataFrame, x: str, *, color: str, linestyle: str = "-", label: str = ""
) -> None:
    """Means with a band from the lowest to the highest seed; a red cross where runs diverged.

    The line is as `points` returns it. A `linestyle` of a space gives marks alone, whose bands
    are bars.
    """
    axes.plot(
        line[x], line["mean"], linestyle, color=color, marker="o", ms=4.5, label=label or None
    )
    if linestyle.strip():
        axes.fill_between(line[x], line["low"], line["high"], color=color, alpha=_BAND, linewidth=0)
    else:
        axes.vlines(line[x], line["low"], line["high"], color=color)
    cross_at_foot(axes, line.loc[line["num_diverged"] > 0, x], zorder=5)


def cross_at_foot(axes: Axes, x: pd.Series, **settings: Any) -> None:
    """Red crosses on the horizontal axis, where runs diverged."""
    place = axes.get_xaxis_transform()
    axes.scatter(x, [0.02] * len(x), marker="x", color=style.DIVERGED, transform=place, **settings)


def draw_curve(
    axes: Axes, frame: pd.DataFrame, *, color: str, linestyle: str = "-", label: str = ""
) -> None:
    """Means over epochs with a band; diverged runs as a thin line that ends in a red cross.

    The frame is one line of what `curve_points` returns.
    """
    line = frame[frame["outcome"] == "finished"]
    lost = frame[frame["outcome"] == "diverged"]
    axes.plot(line["epoch"], line["mean"], linestyle, color=color, label=label or None)
    low, high = line["low"], line["high"]
    axes.fill_between(line["epoch"], low, high, color=color, alpha=_BAND, linewidth=0)
    axes.plot(lost["epoch"], lost["mean"], linestyle, color=color, linewidth=0.7)
    axes.plot(lost["epoch"].iloc[-1:], lost["mean"].iloc[-1:], "x", color=style.DIVERGED)
