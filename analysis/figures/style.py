"""How all figures look: widths, letters, colours, marks, axes and words. Needs no display."""

import warnings
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_hex, to_rgb
from matplotlib.font_manager import fontManager
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator
from numpy.typing import ArrayLike

from analysis.tables.metric import Metric

#: For a screen, with title and note; for a column or the text of a paper, without.
Width = Literal["screen", "column", "text"]

#: Width of a figure [inches].
INCHES: dict[Width, float] = {"screen": 7.2, "column": 3.35, "text": 6.9}

#: Sizes of letters [points].
LETTERS, SMALL = 8.0, 7.0

#: Contrast of ink with white paper that suffices for graphics (WCAG 2, 1.4.11).
CONTRAST = 3.0

#: Colour of what diverged, and of references.
DIVERGED, GREY = "#c1272d", "#555555"

_THIN = 0.6
_RC: dict[str, Any] = {
    "font.size": LETTERS,
    "axes.labelsize": LETTERS,
    "axes.titlesize": LETTERS,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "legend.fontsize": SMALL,
    "legend.title_fontsize": SMALL,
    "legend.frameon": False,
    "axes.linewidth": _THIN,
    "xtick.major.width": _THIN,
    "ytick.major.width": _THIN,
    "grid.linewidth": 0.4,
    "grid.alpha": 0.3,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 0.9,
    "lines.markersize": 3.4,
    "pdf.fonttype": 42,  # TrueType: publishers refuse Type 3
    "svg.fonttype": "none",  # text stays text
}

#: Fonts with more letters, of which those that are installed are used where ours lacks one.
_MORE_LETTERS = (
    "Noto Sans CJK SC", "Noto Sans CJK JP", "Source Han Sans SC", "WenQuanYi Zen Hei",
    "Microsoft YaHei", "PingFang SC", "Hiragino Sans", "Malgun Gothic", "Arial Unicode MS",
)  # fmt: skip


@contextmanager
def use_style() -> Generator[None]:
    """Decorates functions that draw or save a figure. Letters that no font has are boxes."""
    known = {font.name for font in fontManager.ttflist}
    families = ["DejaVu Sans", *(name for name in _MORE_LETTERS if name in known)]
    settings: Any = {**_RC, "font.family": families}
    with mpl.rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")
        yield


#: Dark to light, each with enough contrast with white. Blue to yellow: ten steps can be told apart
#: without the cones for red or green.
_ORDERED = LinearSegmentedColormap.from_list(
    "ordered", ["#290007", "#321839", "#2c00be", "#7854d1", "#807f6a", "#bc8c08"]
)
#: With more ordered lines than this every other is dashed.
_MOST_SOLID = 6
_NAMED = (
    "#0072b2", "#d55e00", "#007f5f", "#a0307a", "#000000", "#8c6d00", "#5b4fcf", "#7a3b1d",
    "#e0529c", "#777777", "#b5301f", "#2e4a1f", "#008b8b",
)  # fmt: skip
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_LINE_STYLES = ("-", "--", ":", "-.")


@dataclass(frozen=True, slots=True)
class Mark:
    """What tells a line from others, also in greyscale."""

    color: str
    marker: str = "o"
    linestyle: str = "-"


def ordered_marks(count: int) -> list[Mark]:
    """Marks of an ordered quantity, dark to light."""
    places = [0.4] if count == 1 else np.linspace(0, 1, count)
    lines = _LINE_STYLES[: 1 + (count > _MOST_SOLID)]
    return [
        Mark(to_hex(_ORDERED(p)), _MARKERS[i % len(_MARKERS)], lines[i % len(lines)])
        for i, p in enumerate(places)
    ]


def named_marks(names: Iterable[str]) -> dict[str, Mark]:
    """Marks of things without an order, such as optimizers, by name."""
    return {
        name: Mark(_NAMED[i % len(_NAMED)], _MARKERS[i % len(_MARKERS)], _LINE_STYLES[i % 4])
        for i, name in enumerate(names)
    }


def contrast(color: Any, paper: Any = "white") -> float:
    """Contrast of two colours, 1 to 21.

    Source:
        Web Content Accessibility Guidelines 2.2, relative luminance and contrast ratio.
    """
    channels = np.array([to_rgb(color), to_rgb(paper)])
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    dark, light = np.sort(linear @ (0.2126, 0.7152, 0.0722))
    return float((light + 0.05) / (dark + 0.05))


@dataclass(frozen=True, slots=True)
class Scale:
    """An axis on which equal steps are equal lengths, and its inverse."""

    to: Callable[[Any], Any]
    back: Callable[[Any], Any]


BATCHES = Scale(np.log2, np.exp2)
WARMUPS = Scale(np.log1p, np.expm1)  # the estimators' scale; has room for no warmup
RATES = Scale(np.log, np.exp)
PLACES = Scale(np.asarray, np.asarray)


def batch_axis(axes: Axes, batches: Sequence[int], labels: Sequence[str] | None = None) -> None:
    """A logarithmic axis labelled at the batches that were run [examples]."""
    axes.set_xscale("log", base=2)
    _set_ticks(axes, batches, labels or [f"{batch:,}" for batch in batches])
    if len(batches) == 1:
        axes.set_xlim(batches[0] / 2, batches[0] * 2)


def warmup_axis(axes: Axes, warmups: Sequence[float], labels: Sequence[str] | None = None) -> None:
    """An axis of log(warmup + 1), labelled at the warmups that were run [epochs]."""
    axes.set_xscale("function", functions=(WARMUPS.to, WARMUPS.back))
    _set_ticks(axes, warmups, labels or [f"{warmup:g}" for warmup in warmups])
    ends = WARMUPS.to(np.array([warmups[0], warmups[-1]]))
    edge = 0.06 * (ends[1] - ends[0]) or 0.5
    axes.set_xlim(*WARMUPS.back(ends + np.array([-edge, edge])))


def rate_axis(axes: Axes, _: Sequence[float] = ()) -> None:
    """A logarithmic axis of learning rates."""
    axes.set_xscale("log")


def _set_ticks(axes: Axes, places: Sequence[float], labels: Sequence[str]) -> None:
    axes.xaxis.set_major_locator(FixedLocator([float(place) for place in places]))
    axes.xaxis.set_minor_locator(NullLocator())
    words = dict(zip(map(float, places), labels, strict=True))

    def label(value: float, _: int | None) -> str:
        return words.get(float(value), "")

    axes.xaxis.set_major_formatter(FuncFormatter(label))


def epoch_axis(axes: Axes) -> None:
    """An axis of whole epochs."""
    axes.xaxis.set_major_locator(MaxNLocator(nbins="auto", integer=True, min_n_ticks=1))


def value_axis(axes: Axes, metric: Metric) -> None:
    """Ticks of a metric."""
    axes.grid(visible=True, axis="y")
    if metric.unit == "%":
        axes.yaxis.set_major_formatter(FuncFormatter(_format_percent))


def _format_percent(value: float, _: int | None) -> str:
    return f"{100 * value:.4g}"


def value_limits(axes: Axes, metric: Metric, seen: ArrayLike, bars: ArrayLike = ()) -> bool:
    """Set limits between which the values in `seen` fill a third of the height or more.

    Returns:
        Whether the axis cuts bars off.
    """
    values, ends = _finite_values(seen), _finite_values(bars)
    if not len(values):
        axes.set_yticks([])
        middle: dict[str, Any] = {"ha": "center", "va": "center", "transform": axes.transAxes}
        axes.text(0.5, 0.5, "no run finished", color=GREY, **middle)
        return False
    low, high = values.min(), values.max()
    room = (high - low) or 0.05 * abs(high) or 1.0
    bottom = max(min([low, *ends]), low - room) - 0.05 * room
    top = min(max([high, *ends]), high + room) + 0.05 * room
    if metric.unit == "%":
        bottom, top = max(bottom, -0.01), min(top, 1 + 0.05 * room)
    axes.set_ylim(bottom, top)
    return bool(len(ends) and (ends.min() < bottom or ends.max() > top))


def _finite_values(values: ArrayLike) -> Any:
    found = np.asarray(values, dtype=float).ravel()
    return found[np.isfinite(found)]


def value_label(metric: Metric) -> str:
    """The axis label of a metric; without a unit it says which direction is better."""
    better = "higher is better" if metric.mode == "max" else "lower is better"
    about = f"[{metric.unit}]" if metric.unit else f"({better})"
    return f"{metric.label or metric.name} {about}"


def title_word(metric: Metric) -> str:
    """A metric at the start of a title; a name that a module logs keeps its spelling."""
    return metric.word.capitalize() if metric.label else metric.name
