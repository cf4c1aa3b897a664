"""Time against device-hours: a line per batch, over numbers of devices, and the frontier."""

from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

from analysis.figures import style
from analysis.figures.sheet import Drawing, Given, Sheet
from analysis.figures.style import Width
from analysis.frontier.tradeoff import Tradeoff

#: Units of time by their length [seconds].
_UNITS = {"h": 3600.0, "min": 60.0, "s": 1.0}


@style.use_style()
def draw_frontier(
    found: Tradeoff, about: str = "", *, width: Width = "screen", ax: Given = None
) -> Drawing:
    """Time to the target against device-hours, with the knee; marks at the fastest of each batch.

    Args:
        found: time and device-hours of all batches.
        about: what was assumed.
        width: what the figure is for.
        ax: axes of your own.
    """
    sheet = Sheet.new(width, ax)
    (axes,) = sheet.panels
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.grid(visible=True)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(10, subs=(1, 2, 5)))
        axis.set_major_formatter(StrMethodFormatter("{x:,g}"))
        axis.set_minor_locator(NullLocator())
    everything = found.everything
    batches = sorted(everything["global_batch"].unique())
    middle = found.frontier["time_s"].median()
    unit = next((u for u, length in _UNITS.items() if middle > length), "s")
    length = _UNITS[unit]
    changes = found.frontier["global_batch"].diff().ne(0).cumsum()
    for number, part in found.frontier.groupby(changes):  # nothing lies between batches
        axes.plot(
            part["device_hours"], part["time_s"] / length, color="#bbbbbb", linewidth=4,
            solid_capstyle="round", zorder=1, label="frontier" if number == 1 else None,
        )  # fmt: skip
    for batch, mark in zip(batches, style.ordered_marks(len(batches)), strict=True):
        line = everything[everything["global_batch"] == batch].sort_values("devices")
        hours, times = line["device_hours"], line["time_s"] / length
        axes.plot(hours, times, color=mark.color, label=f"batch {batch:,}")
        end = line.iloc[line["time_s"].argmin()]
        x, y = end["device_hours"], end["time_s"] / length
        axes.plot([x], [y], mark.marker, color=mark.color, markeredgewidth=0)
        low, high = end["time_low_s"] / length, end["time_high_s"] / length
        axes.plot(  # more steps raise both, along a diagonal
            [end["device_hours_low"], end["device_hours_high"]], [low, high],
            color=mark.color, linewidth=2.2, alpha=0.4, solid_capstyle="butt",
        )  # fmt: skip
    knee = found.knee
    axes.plot(
        [knee["device_hours"]], [knee["time_s"] / length], "o", color="none", markersize=9,
        markeredgecolor="black", markeredgewidth=0.9, label="knee",
    )  # fmt: skip
    sheet.label("device-hours", f"time to the target [{unit}]")
    how = "Lines: numbers of devices. Marks: the fastest of a batch, with 95 % intervals of seeds."
    return sheet.finish(everything, "Time against device-hours", [about, how])
