"""Lines and marks: points along a quantity, shares that diverged, curves over epochs.

No arithmetic but the places of what stands side by side.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.figures.points import Array, has_dots
from analysis.figures.style import BATCHES, Mark, Scale

#: Lines side by side take at most this share of the gap between two places,
_ROOM = 0.75
#: and each at most this share of the axis.
_STEP = 0.018

_BAND = 0.16

#: About so many epochs of a curve are marked.
_MARKERS = 8


@dataclass(frozen=True, slots=True)
class Lane:
    """Offsets a line of several from the places that they share, so that none hides another.

    Attributes:
        places: all places along the axis, in order.
        scale: of the axis.
        index: which of the lines, from 0.
        count: how many lines.
    """

    places: Sequence[float]
    scale: Scale = BATCHES
    index: int = 0
    count: int = 1

    def at(self, places: pd.Series | Array, aside: float = 0.0) -> Array:
        """The places moved into the lane, and further by a fraction of its width."""
        u = np.unique(self.scale.to(np.asarray(self.places, dtype=float)))
        gap, span = (np.diff(u).min(), np.ptp(u)) if len(u) > 1 else (1.0, 2.0)
        step = min(_ROOM * gap / self.count, _STEP * span)
        moved = step * (self.index - (self.count - 1) / 2 + aside)
        return self.scale.back(self.scale.to(np.asarray(places, dtype=float)) + moved)


def draw_points(
    axes: Axes, line: pd.DataFrame, x: str, *, mark: Mark, lane: Lane, label: str = "",
    strip: Axes | None = None,
) -> None:  # fmt: skip
    """Means with 95 % intervals and the seeds as small dots.

    The line is as `points` returns it. Means are joined where no place between them is missing. A
    strip shows the shares of runs that diverged with 95 % intervals, where any did.
    """
    whole = line.set_index(x).reindex(list(lane.places)).reset_index()
    place = lane.at(whole[x])
    axes.vlines(place, whole["low"], whole["high"], color=mark.color, linewidth=0.7, alpha=0.7)
    if has_dots(line):
        beside = np.repeat(lane.at(line[x], 0.3), line["values"].map(len))
        seeds = [value for values in line["values"] for value in values]
        small: dict[str, Any] = {"markersize": 1.7, "markeredgewidth": 0, "alpha": 0.8, "zorder": 3}
        axes.plot(beside, seeds, "o", color=mark.color, gid="seeds", **small)
    axes.plot(
        place, whole["mean"], mark.linestyle, color=mark.color, marker=mark.marker,
        markeredgewidth=0, label=label or None,
    )  # fmt: skip
    if strip is None:
        return
    lost = line[line["num_diverged"] > 0]
    place = lane.at(lost[x])
    share = lost["num_diverged"] / (lost["num_diverged"] + lost["num_finished"])
    strip.vlines(place, lost["diverged_low"], lost["diverged_high"], color=mark.color, alpha=0.7)
    strip.plot(place, share, " ", color=mark.color, marker=mark.marker, markeredgewidth=0)


def draw_curve(
    axes: Axes, frame: pd.DataFrame, *, mark: Mark, label: str = "", has_band: bool = True
) -> None:
    """Means of curves with 95 % bands; a thin line of diverged runs, a cross below its end.

    The frame is a line of what `curve_points` returns.
    """
    line = frame[frame["outcome"] == "finished"]
    lost = frame[frame["outcome"] == "diverged"]
    clock = "epoch" if "epoch" in frame else "examples_seen"
    axes.plot(
        line[clock], line["mean"], mark.linestyle, color=mark.color, marker=mark.marker,
        markersize=2.6, markevery=max(1, len(line) // _MARKERS), label=label or None,
    )  # fmt: skip
    if has_band:
        low, high = line["low"], line["high"]
        axes.fill_between(line[clock], low, high, color=mark.color, alpha=_BAND, linewidth=0)
    if len(lost):
        axes.plot(lost[clock], lost["mean"], mark.linestyle, color=mark.color, linewidth=0.5)
        foot = axes.get_xaxis_transform()
        axes.plot(lost[clock].iloc[-1:], [0.03], "x", color=mark.color, transform=foot)
