"""The metric by batch and warmup, with its values; a panel per lr rule."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.patches import Rectangle

from analysis.figures import style
from analysis.figures.final import BATCH, WARMUP
from analysis.figures.points import points, reading_note
from analysis.figures.save import Drawing
from analysis.figures.sheet import Given, Sheet
from analysis.figures.style import INCHES, SMALL, Width
from analysis.tables.comparable_runs import ComparableRuns
from analysis.tables.metric import ACCURACY, Metric

_COLORS = colormaps["viridis"]
_ROW = 0.17  # height of a cell [inches]
_MARGIN = 0.55  # for the labels of a panel [inches]
_LETTER = 0.64 * SMALL / 72  # width of a digit [inches]

#: Follows a value where some of the runs diverged, and stands for it where all did.
_SOME, _ALL = "†", "div."

_NOTE = "Cells: means over finished seeds; framed: the best warmup of each batch"
_NOTE_ON_DIVERGED = f"; {_SOME}: some runs diverged, {_ALL}: all did"


@style.look()
def draw_heat_map(
    compared: ComparableRuns, metric: Metric = ACCURACY, *, width: Width = "screen",
    ax: Given = None,
) -> Drawing:  # fmt: skip
    """The metric after the last epoch at every batch and warmup, as colours and numbers.

    With `ax`, one axes per lr rule, it is drawn into a figure of your own.
    """
    frame = points(compared.runs, metric.name)
    batches, warmups, rules = (
        sorted(frame[name].unique()) for name in ("global_batch", "warmup_epochs", "lr_rule")
    )
    sheet = Sheet.new(width, ax, len(rules), height=0.3 + _ROW * len(warmups))
    low, high = frame["mean"].min(), frame["mean"].max()
    colors = Normalize(low, high if high > low else low + 1)
    cell = (INCHES[width] / sheet.across - _MARGIN) / len(batches)
    digits = _digits(frame["mean"], metric, cell)
    for axes, rule in zip(sheet.panels, rules, strict=True):
        of_rule = frame[frame["lr_rule"] == rule]
        grid = of_rule.pivot_table("mean", "warmup_epochs", "global_batch")
        grid = grid.reindex(index=warmups, columns=batches)
        axes.pcolormesh(grid.to_numpy(float), cmap=_COLORS, norm=colors)
        _write_values(axes, of_rule, grid, colors, (metric, digits))
        axes.set_xticks(np.arange(len(batches)) + 0.5, [f"{batch:,}" for batch in batches])
        axes.set_yticks(np.arange(len(warmups)) + 0.5, [f"{warmup:g}" for warmup in warmups])
        axes.tick_params(length=0)
        axes.spines[["left", "bottom"]].set_visible(False)
        if len(rules) > 1:
            axes.set_title(f"lr {rule}", parse_math=False)
    sheet.label(BATCH, WARMUP)
    unit = style.value_label(metric)
    title = f"{style.title_word(metric)} after the last epoch by batch and warmup: {compared.title}"
    note = f"{unit}. {_NOTE}{_NOTE_ON_DIVERGED if frame['num_diverged'].any() else ''}. "
    note = note[0].upper() + note[1:] + reading_note(frame).partition(". ")[2]
    return sheet.finish(frame, title, [compared.about, note.strip()])


def _write_values(
    axes: Axes,
    of_rule: pd.DataFrame,
    grid: pd.DataFrame,
    colors: Normalize,
    shown: tuple[Metric, int],
) -> None:
    metric, digits = shown
    best = (metric.sign * grid).max()
    rows, columns = [*grid.index], [*grid.columns]
    size: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": SMALL}
    for _, row in of_rule.iterrows():
        x, y = columns.index(row["global_batch"]), rows.index(row["warmup_epochs"])
        mean = float(row["mean"])
        if np.isnan(mean):
            if row["num_diverged"]:
                axes.text(x + 0.5, y + 0.5, _ALL, color=style.DIVERGED, **size)
            continue
        paper = _COLORS(colors(mean))
        ink = max(("black", "white"), key=lambda color: style.contrast(color, paper))
        text = _number(mean, metric, digits) + (_SOME if row["num_diverged"] else "")
        axes.text(x + 0.5, y + 0.5, text, color=ink, **size)
        if metric.sign * mean == best[row["global_batch"]]:
            place = x + 0.04, y + 0.06
            axes.add_patch(Rectangle(place, 0.92, 0.88, fill=False, edgecolor=ink, linewidth=1.0))


def _digits(means: pd.Series, metric: Metric, cell: float) -> int:
    """Digits that tell the cells apart and fit into a cell of this width [inches]."""
    wanted = 2 if metric.unit != "%" or np.ptp(means.dropna()) < 0.05 else 1
    longest = max((len(_number(mean, metric, wanted)) for mean in means.dropna()), default=0)
    return wanted if longest * _LETTER < cell else wanted - 1


def _number(mean: float, metric: Metric, digits: int) -> str:
    return f"{100 * mean:.{digits}f}" if metric.unit == "%" else f"{mean:.{digits + 1}g}"
