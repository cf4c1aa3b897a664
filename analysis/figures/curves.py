"""The metric per epoch: a panel per batch, a line per warmup."""

from typing import cast

import pandas as pd
from matplotlib.axes import Axes

from analysis.figures import style
from analysis.figures.final import WARMUPS
from analysis.figures.lines import draw_curve
from analysis.figures.points import POINT, add_intervals, points, reading_note_of_curves
from analysis.figures.sheet import Drawing, Given, Sheet
from analysis.figures.style import Width
from analysis.tables.comparable_runs import ComparableRuns, takes_frame
from analysis.tables.metric import ACCURACY, Metric, clock_label, clock_of

#: With more lines than this in a panel bands hide each other, and are not drawn.
MOST_BANDS = 4

#: The axis is fitted to this last share of the training.
_SHOWN = 1 / 2


def curve_points(
    runs: pd.DataFrame, curves: pd.DataFrame, measure: str = "val_accuracy"
) -> pd.DataFrame:
    """The replicates of each point at each epoch, or number of examples, summarised.

    Uses `run_id`, `outcome` and the columns of `POINT` of the runs.

    Returns:
        a row per point, outcome (finished or diverged) and `clock_of` the curves: `mean`, `sd`,
        `low` and `high` (95 % t interval, as in `points`), `num_seeds`. Diverged and finished runs
        have separate rows.
    """
    ended = runs[runs["outcome"].isin(["finished", "diverged"])]
    clock = clock_of(curves)
    joined = curves[["run_id", clock, measure]].merge(ended[["run_id", "outcome", *POINT]])
    frame = (
        joined.groupby([*POINT, "outcome", clock], as_index=False)[measure]
        .agg(["mean", "std", "count"])
        .rename(columns={"std": "sd", "count": "num_seeds"})
        .sort_values([*POINT, "outcome", clock], ignore_index=True)
    )
    return add_intervals(frame, frame["num_seeds"], measure)


@takes_frame
@style.use_style()
def draw_per_epoch(
    compared: ComparableRuns, curves: pd.DataFrame, metric: Metric = ACCURACY, *,
    width: Width = "screen", ax: Given = None,
) -> Drawing:  # fmt: skip
    """The metric at each evaluation, of runs of a single lr rule (`split_by_rule`).

    With `ax`, an axes per batch, it is drawn into a figure of your own.

    Raises:
        ValueError: if the runs are of several rules.
    """
    rules = sorted(compared.runs["lr_rule"].unique())
    if len(rules) > 1:
        msg = f"runs must be of one lr rule; got {', '.join(rules)}. Use split_by_rule."
        raise ValueError(msg)
    frame = curve_points(compared.runs, curves, metric.name)
    batches = sorted(compared.runs["global_batch"].unique())
    warmups = sorted(compared.runs["warmup_epochs"].unique())
    sheet = Sheet.new(width, ax, len(batches), across=3)
    marks = style.ordered_marks(len(warmups))
    has_bands = len(warmups) <= MOST_BANDS
    for axes, batch in zip(sheet.panels, batches, strict=True):
        if len(batches) > 1:
            axes.set_title(f"batch {batch:,}")
        of_batch = frame[frame["global_batch"] == batch]
        for warmup, mark in zip(warmups, marks, strict=True):
            line = of_batch[of_batch["warmup_epochs"] == warmup]
            draw_curve(axes, line, mark=mark, label=f"{warmup:g}", has_band=has_bands)
        style.epoch_axis(axes)
    clock = clock_label(frame, compared.runs)
    note = limit_to_end(sheet.panels, frame, metric)
    sheet.label(clock, style.value_label(metric))
    summary = points(compared.runs, metric.name)
    note = reading_note_of_curves(summary, has_bands=has_bands) + note
    by = "per epoch" if clock == "epoch" else "by examples"
    title = f"{style.title_word(metric)} {by}: {compared.title}"
    return sheet.finish(frame, title, [compared.about, note], WARMUPS.label_of(compared.runs))


def limit_to_end(panels: list[Axes], frame: pd.DataFrame, metric: Metric) -> str:
    """Fit the axis to the end of training, where curves differ; return a note on what it cuts."""
    done = frame[frame["outcome"] == "finished"] if len(frame) else frame
    shown = done if len(done) else frame
    at = shown[clock_of(frame)]
    late = shown[at >= (1 - _SHOWN) * cast("float", at.max())]
    seeds = [late["mean"], late["mean"] - late["sd"], late["mean"] + late["sd"]]
    has_cut_bands = False
    for axes in panels:
        style.value_axis(axes, metric)
        has_cut_bands = style.value_limits(axes, metric, pd.concat(seeds), late[["low", "high"]])
    if not len(shown):
        return ""
    bottom, top = panels[0].get_ylim()
    is_cut = bool(((frame["mean"] < bottom) | (frame["mean"] > top)).any())
    cut = " The axis is that of the last half; what is earlier is cut."
    notes = [cut] if is_cut else []
    notes += [" Bands that end at the frame are wider."] if has_cut_bands else []
    return "".join(notes)
