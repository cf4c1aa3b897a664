"""How all figures look: colours, axes and words. Needs no display."""

import re
import textwrap
from collections.abc import Sequence

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from analysis.tables.metric import Metric

#: Colour of what diverged, in every figure.
DIVERGED = "#c1272d"
#: Characters in a line of the note under a figure.
_NOTE_WIDTH = 120
_LINE_STYLES = ("-", "--", ":", "-.")


def ordered_colors(count: int) -> list[str]:
    """Colours for an ordered quantity, dark to light, told apart also in grey."""
    scale = mpl.colormaps["viridis"]
    places = [0.5] if count == 1 else [0.88 * i / (count - 1) for i in range(count)]
    return [to_hex(scale(place)) for place in places]


def line_style(index: int) -> str:
    """A line style for the i-th of an unordered quantity."""
    return _LINE_STYLES[index % len(_LINE_STYLES)]


def new_figure(
    width: float = 7.2, height: float = 4.6, rows: int = 1, columns: int = 1
) -> tuple[Figure, list[Axes]]:
    """A figure and its panels, row by row, with shared axes.

    Width and height are in inches.
    """
    figure = Figure(figsize=(width, height), layout="constrained")
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for axes in panels.flat:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25, linewidth=0.6)
        axes.set_axisbelow(True)
    return figure, list(panels.flat)


def titles(figure: Figure, title: str, about: str, note: str) -> None:
    """Write what is drawn, on what, and how to read it."""
    figure.suptitle(title, fontsize=11, fontweight="bold", x=0.01, ha="left")
    lines = "\n".join(textwrap.fill(text, _NOTE_WIDTH) for text in (about, note) if text)
    figure.supxlabel(lines, fontsize=7.5, color="#555555", x=0.01, ha="left")


def batch_axis(axes: Axes, batches: Sequence[int]) -> None:
    """A logarithmic axis labelled at the batches that were run [examples]."""
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator([float(b) for b in batches]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(_thousands))
    if len(batches) == 1:
        axes.set_xlim(batches[0] / 2, batches[0] * 2)
    axes.set_xlabel("global batch [examples]")


def epoch_axis(axes: Axes) -> None:
    """An axis of whole epochs."""
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("epoch")


def value_axis(axes: Axes, metric: Metric, when: str = "") -> None:
    """A vertical axis of a metric; of one without a unit it says which way is better."""
    comma = f", {when}" if when else ""
    better = "higher is better" if metric.mode == "max" else "lower is better"
    ending = f"[{metric.unit}]" if metric.unit else f"({better})"
    axes.set_ylabel(f"{metric.label or metric.name}{comma} {ending}")
    if metric.unit == "%":
        axes.yaxis.set_major_formatter(FuncFormatter(_percent))


def title_word(metric: Metric) -> str:
    """A metric at the start of a title; a name that a module logs keeps its spelling."""
    return metric.word.capitalize() if metric.label else metric.name


def file_word(metric: Metric) -> str:
    """A metric at the start of a file's name."""
    return re.sub(r"\W+", "_", metric.word)


def legend(figure: Figure, panel: Axes) -> None:
    """Name the lines of a panel to the right of all panels, if there are several."""
    handles, labels = panel.get_legend_handles_labels()
    if len(handles) > 1:
        figure.legend(handles, labels, loc="outside right center", frameon=False, fontsize=8)


def _thousands(value: float, _: int | None) -> str:
    return f"{value:,.0f}"


def _percent(value: float, _: int | None) -> str:
    return f"{100 * value:.4g}"
