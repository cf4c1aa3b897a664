"""The final metric: against the batch, and against the warmup; a panel per lr rule."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from analysis.figures import style
from analysis.figures.lines import Lane, draw_diverged, draw_points
from analysis.figures.points import points, reading_note
from analysis.figures.save import Drawing
from analysis.figures.sheet import Given, Sheet
from analysis.figures.style import Scale, Width
from analysis.tables.comparable_runs import ComparableRuns
from analysis.tables.metric import ACCURACY, Metric

#: Horizontal axes in words, and strips below panels.
BATCH, WARMUP = "global batch [examples]", "warmup [epochs]"
DIVERGED = "diverged\n[%]"


@dataclass(frozen=True, slots=True)
class _Axis:
    column: str
    word: str
    label: str
    scale: Scale
    draw: Callable[..., Any]


_BATCH = _Axis("global_batch", "batch", BATCH, style.BATCHES, style.batch_axis)
_WARMUP = _Axis("warmup_epochs", "warmup", WARMUP, style.WARMUPS, style.warmup_axis)


@style.look()
def draw_against_batch(
    compared: ComparableRuns, metric: Metric = ACCURACY, *, width: Width = "screen",
    ax: Given = None,
) -> Drawing:  # fmt: skip
    """The metric after the last epoch against the global batch, a line per warmup.

    With `ax`, one axes per lr rule, it is drawn into a figure of your own.
    """
    return _draw(compared, metric, _BATCH, _WARMUP, width, ax)


@style.look()
def draw_against_warmup(
    compared: ComparableRuns, metric: Metric = ACCURACY, *, width: Width = "screen",
    ax: Given = None,
) -> Drawing:  # fmt: skip
    """As `draw_against_batch`, against the warmup, a line per batch."""
    return _draw(compared, metric, _WARMUP, _BATCH, width, ax)


def _draw(
    compared: ComparableRuns, metric: Metric, x: _Axis, by: _Axis, width: Width, ax: Given
) -> Drawing:
    frame = points(compared.runs, metric.name)
    rules = sorted(frame["lr_rule"].unique())
    places, levels = (sorted(frame[axis.column].unique()) for axis in (x, by))
    lost = frame.loc[frame["num_diverged"] > 0, "lr_rule"]
    sheet = Sheet.new(width, ax, len(rules), strips=[rule in set(lost) for rule in rules])
    for i, (axes, rule) in enumerate(zip(sheet.panels, rules, strict=True)):
        x.draw(axes, places)
        style.value_axis(axes, metric)
        if len(rules) > 1:
            axes.set_title(f"lr {rule}", parse_math=False)
        if rule in set(lost):
            sheet.add_strip(i, DIVERGED)
    for i, (level, mark) in enumerate(zip(levels, style.ordered_marks(len(levels)), strict=True)):
        lane = Lane(places, x.scale, i, len(levels))
        for j, (axes, rule) in enumerate(zip(sheet.panels, rules, strict=True)):
            line = frame[(frame[by.column] == level) & (frame["lr_rule"] == rule)]
            draw_points(
                axes, line, x.column, mark=mark, lane=lane, label=f"{round(level, 6):,.12g}"
            )
            if j in sheet.strips:
                draw_diverged(sheet.strips[j], line, x.column, mark=mark, lane=lane)
    seen = [value for values in frame["values"] for value in values]
    is_cut = False
    for axes in sheet.panels:
        is_cut = style.value_limits(axes, metric, seen, frame[["low", "high"]])
    sheet.label(x.label, style.value_label(metric))
    title = f"{style.title_word(metric)} after the last epoch against {x.word}: {compared.title}"
    note = reading_note(frame) + (CUT if is_cut else "")
    return sheet.finish(frame, title, [compared.about, note], by.label)


#: What a note says where bars leave the panel.
CUT = " Bars that end at the frame are longer; the table has their ends."
