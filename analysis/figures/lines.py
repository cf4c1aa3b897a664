"""Lines with bands: points along a quantity, and curves over epochs. No arithmetic."""

import pandas as pd
from matplotlib.axes import Axes

from analysis.figures.style import DIVERGED

_BAND = 0.18


def draw_points(
    axes: Axes, line: pd.DataFrame, x: str, *, color: str, style: str = "-", label: str = ""
) -> None:
    """Means with a band from the lowest to the highest seed; a red cross where runs diverged.

    Args:
        axes: to draw on.
        line: as `points` returns it, of one line.
        x: column along the horizontal axis.
        color: of the line.
        style: of the line; a space for marks alone, whose bands are bars.
        label: for the legend; empty for none.
    """
    axes.plot(
        line[x], line["mean"], style, color=color, marker="o", markersize=4.5, label=label or None
    )
    if style.strip():
        axes.fill_between(line[x], line["low"], line["high"], color=color, alpha=_BAND, linewidth=0)
    else:
        axes.vlines(line[x], line["low"], line["high"], color=color)
    diverged = line[line["num_diverged"] > 0]
    foot, place = [0.02] * len(diverged), axes.get_xaxis_transform()
    axes.scatter(diverged[x], foot, marker="x", color=DIVERGED, transform=place, zorder=5)


def draw_curve(
    axes: Axes, frame: pd.DataFrame, *, color: str, style: str = "-", label: str = ""
) -> None:
    """Means over epochs with a band; diverged runs as a thin line that ends in a red cross.

    Args:
        axes: to draw on.
        frame: as `curve_points` returns it, of one line.
        color: of the line.
        style: of the line.
        label: for the legend; empty for none.
    """
    line = frame[frame["outcome"] == "finished"]
    lost = frame[frame["outcome"] == "diverged"]
    axes.plot(line["epoch"], line["mean"], style, color=color, label=label or None)
    low, high = line["low"], line["high"]
    axes.fill_between(line["epoch"], low, high, color=color, alpha=_BAND, linewidth=0)
    axes.plot(lost["epoch"], lost["mean"], style, color=color, linewidth=0.7)
    axes.plot(lost["epoch"].iloc[-1:], lost["mean"].iloc[-1:], "x", color=DIVERGED)
