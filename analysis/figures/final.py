"""The final metric against batch, warmup and both."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.patches import Rectangle

from analysis.figures import style
from analysis.figures.lines import Lane, draw_points
from analysis.figures.points import points, reading_note
from analysis.figures.sheet import Drawing, Given, Sheet
from analysis.figures.style import INCHES, SMALL, Scale, Width
from analysis.stats.best_setting import BestSettings
from analysis.tables.comparable_runs import ComparableRuns, example_unit, takes_frame, warmup_unit
from analysis.tables.metric import ACCURACY, Metric

#: Horizontal axes in words, and strips below panels.
BATCH, WARMUP = "global batch [examples]", "warmup [epochs]"
DIVERGED = "diverged\n[%]"


@dataclass(frozen=True, slots=True)
class Axis:
    """A setting that a figure is drawn against, or that tells its lines apart."""

    column: str
    word: str
    label: str
    scale: Scale
    draw: Callable[..., None]

    def label_of(self, runs: pd.DataFrame) -> str:
        """Its label, with the unit that these runs count in."""
        label = self.label.replace("[examples]", f"[{example_unit(runs)}]")
        return label.replace("[epochs]", f"[{warmup_unit(runs)}]")


BATCHES = Axis("global_batch", "batch", BATCH, style.BATCHES, style.batch_axis)
WARMUPS = Axis("warmup_epochs", "warmup", WARMUP, style.WARMUPS, style.warmup_axis)
RULES = Axis("lr_rule", "rule", "learning-rate rule", style.PLACES, style.rate_axis)
RATES = Axis("peak_lr", "learning rate", "peak learning rate", style.RATES, style.rate_axis)


@takes_frame
@style.use_style()
def draw_against_batch(
    compared: ComparableRuns, metric: Metric = ACCURACY, *, width: Width = "screen",
    ax: Given = None,
) -> Drawing:  # fmt: skip
    """The metric at the end of training against the global batch, a line per warmup.

    Of a single warmup there is a line per lr rule, and one panel.
    With `ax`, an axes per lr rule, it is drawn into a figure of your own.
    """
    return _draw(compared, metric, BATCHES, WARMUPS, width, ax)


@takes_frame
@style.use_style()
def draw_against_warmup(
    compared: ComparableRuns, metric: Metric = ACCURACY, *, width: Width = "screen",
    ax: Given = None,
) -> Drawing:  # fmt: skip
    """As `draw_against_batch`, against the warmup, a line per batch."""
    return _draw(compared, metric, WARMUPS, BATCHES, width, ax)


def _draw(
    compared: ComparableRuns, metric: Metric, x: Axis, by: Axis, width: Width, ax: Given
) -> Drawing:
    frame = points(compared.runs, metric.name)
    rules = sorted(frame["lr_rule"].unique())
    places, levels = (sorted(frame[axis.column].unique()) for axis in (x, by))
    names = {level: f"{round(level, 6):,.12g}" for level in levels}
    marks, panel = style.ordered_marks(len(levels)), "lr_rule"
    if len(levels) == 1 < len(rules):  # rules are lines of one panel
        names, panel, by = {rule: str(rule) for rule in rules}, by.column, RULES
        marks, rules = [*style.named_marks(names.values()).values()], levels
    lost = set(frame.loc[frame["num_diverged"] > 0, panel])
    sheet = Sheet.new(width, ax, len(rules), strips=[rule in lost for rule in rules])
    for i, (axes, rule) in enumerate(zip(sheet.panels, rules, strict=True)):
        x.draw(axes, places)
        if len(rules) > 1:
            axes.set_title(f"lr {rule}", parse_math=False)
        if rule in lost:
            sheet.add_strip(i, DIVERGED)
    for i, ((level, label), mark) in enumerate(zip(names.items(), marks, strict=True)):
        lane = Lane(places, x.scale, i, len(names))
        for j, (axes, rule) in enumerate(zip(sheet.panels, rules, strict=True)):
            line = frame[(frame[by.column] == level) & (frame[panel] == rule)]
            strip = sheet.strips.get(j)
            draw_points(axes, line, x.column, mark=mark, lane=lane, label=label, strip=strip)
    note = reading_note(frame) + limit_values(sheet.panels, frame, metric)
    sheet.label(x.label_of(compared.runs), style.value_label(metric))
    title = f"{style.title_word(metric)} at the end of training against {x.word}: {compared.title}"
    return sheet.finish(frame, title, [compared.about, note], by.label_of(compared.runs))


@takes_frame
@style.use_style()
def draw_best_settings(
    compared: ComparableRuns, best: BestSettings, metric: Metric = ACCURACY, *,
    width: Width = "screen", ax: Given = None,
) -> Drawing:  # fmt: skip
    """The metric at the end of training against the batch, at the best setting of each.

    The runs and settings are those of `along_best`.
    """
    frame = points(compared.runs, metric.name, ["global_batch", *best.columns])
    sheet, places = Sheet.new(width, ax), [*frame["global_batch"]]
    BATCHES.draw(sheet.panels[0], places)
    (mark,), lane = style.ordered_marks(1), Lane(places)
    draw_points(sheet.panels[0], frame, "global_batch", mark=mark, lane=lane)
    note = reading_note(frame) + limit_values(sheet.panels, frame, metric)
    sheet.label(BATCHES.label_of(compared.runs), style.value_label(metric))
    title = f"{style.title_word(metric)} at the best setting of each batch: {compared.title}"
    return sheet.finish(frame, title, [compared.about, best.caption, note])


#: What a note says where bars leave the panel.
CUT = " Bars that end at the frame are longer; the table has their ends."


def limit_values(panels: Sequence[Axes], frame: pd.DataFrame, metric: Metric) -> str:
    """Fit the axes of a metric to the seeds of points; return a note if that cuts bars off."""
    seen = [value for values in frame["values"] for value in values]
    is_cut = False
    for axes in panels:
        style.value_axis(axes, metric)
        is_cut = style.value_limits(axes, metric, seen, frame[["low", "high"]])
    return CUT if is_cut else ""


_COLORS = colormaps["viridis"]
_ROW = 0.17  # height of a cell [inches]
_MARGIN = 0.55  # for the labels of a panel [inches]
_LETTER = 0.64 * SMALL / 72  # width of a digit [inches]

#: Follows a value where some of the runs diverged, and stands for it where all did.
_SOME, _ALL = "†", "div."

_NOTE = (
    "Cells: means over finished seeds; framed: the best warmup of a batch, if its 95 % interval is "
    "apart from that of another"
)
_NOTE_ON_DIVERGED = f"; {_SOME}: some runs diverged, {_ALL}: all did"


@takes_frame
@style.use_style()
def draw_heat_map(
    compared: ComparableRuns, metric: Metric = ACCURACY, *, width: Width = "screen",
    ax: Given = None,
) -> Drawing:  # fmt: skip
    """The metric at the end of training at every batch and warmup, as colours and numbers.

    With `ax`, an axes per lr rule, it is drawn into a figure of your own.
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
        _write_values(axes, of_rule, grid, colors, metric, digits)
        axes.set_xticks(np.arange(len(batches)) + 0.5, [f"{batch:,}" for batch in batches])
        axes.set_yticks(np.arange(len(warmups)) + 0.5, [f"{warmup:g}" for warmup in warmups])
        axes.tick_params(length=0)
        axes.spines[["left", "bottom"]].set_visible(False)
        if len(rules) > 1:
            axes.set_title(f"lr {rule}", parse_math=False)
    sheet.label(*(axis.label_of(compared.runs) for axis in (BATCHES, WARMUPS)))
    unit = style.value_label(metric)
    by = "by batch and warmup"
    title = f"{style.title_word(metric)} at the end of training {by}: {compared.title}"
    note = f"{unit}. {_NOTE}{_NOTE_ON_DIVERGED if frame['num_diverged'].any() else ''}. "
    note = note[0].upper() + note[1:] + reading_note(frame).partition(". ")[2]
    return sheet.finish(frame, title, [compared.about, note.strip()])


def _write_values(
    axes: Axes, of_rule: pd.DataFrame, grid: pd.DataFrame, colors: Normalize, metric: Metric,
    digits: int,
) -> None:  # fmt: skip
    """Write the mean into each cell, and frame the best of each batch, if it can be told."""
    best = {batch: find_best(at, metric) for batch, at in of_rule.groupby("global_batch")}
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
        if row["warmup_epochs"] == best[row["global_batch"]]:
            place = x + 0.04, y + 0.06
            axes.add_patch(Rectangle(place, 0.92, 0.88, fill=False, edgecolor=ink, linewidth=1.0))


def find_best(at_batch: pd.DataFrame, metric: Metric) -> float | None:
    """The warmup with the best mean, if its interval is apart from that of another."""
    ends = np.sort(metric.sign * at_batch[["low", "high"]].to_numpy(float), axis=1)
    means = metric.sign * at_batch["mean"]
    best = int(np.nan_to_num(means, nan=-np.inf).argmax())
    is_apart = (ends[:, 1] < ends[best, 0]).any()
    return float(at_batch["warmup_epochs"].iloc[best]) if is_apart else None


def _digits(means: pd.Series, metric: Metric, cell: float) -> int:
    """Digits that tell the cells apart and fit into a cell of this width [inches]."""
    wanted = 2 if metric.unit != "%" or np.ptp(means.dropna()) < 0.05 else 1
    longest = max((len(_number(mean, metric, wanted)) for mean in means.dropna()), default=0)
    return wanted if longest * _LETTER < cell else wanted - 1


def _number(mean: float, metric: Metric, digits: int) -> str:
    return f"{100 * mean:.{digits}f}" if metric.unit == "%" else f"{mean:.{digits + 1}g}"
