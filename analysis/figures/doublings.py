"""How much of the metric each doubling of the batch costs, by warmup and lr rule."""

import numpy as np
import pandas as pd

from analysis.figures import style
from analysis.figures.final import WARMUP
from analysis.figures.intervals import sum_half_width
from analysis.figures.lines import Lane
from analysis.figures.points import points
from analysis.figures.save import Drawing
from analysis.figures.sheet import Given, Sheet
from analysis.figures.style import Width
from analysis.stats.shares import diverged_in_words
from analysis.tables.comparable_runs import ComparableRuns
from analysis.tables.metric import ACCURACY, Metric

_LINE = ["warmup_epochs", "lr_rule"]


def lost_per_doubling(runs: pd.DataFrame, metric: Metric = ACCURACY) -> pd.DataFrame:
    """What a doubling of the batch costs on average, at each warmup and lr rule.

    Minus the slope of the metric in log2 batch, by least squares through the means of the batches
    that all warmups and rules of several batches share; positive where larger batches are worse.

    Uses `outcome`, `global_batch`, `warmup_epochs`, `lr_rule` and the metric.

    Returns:
        One row per warmup and rule: `lost` (accuracies: 0 to 1), `low` and `high` (95 % t
        interval; null where a point has one seed), `smallest_batch`, `largest_batch`,
        `num_batches`, `num_seeds` (fewest of a point). None if no two batches are shared.
    """
    frame = points(runs, metric.name).dropna(subset=["mean"])
    lines = [(key, line) for key, line in frame.groupby(_LINE) if len(line) > 1]
    shared = (
        set[int].intersection(*(set(line["global_batch"]) for _, line in lines)) if lines else ()
    )
    rows = [
        dict(zip(_LINE, key, strict=True))
        | _slope(line[line["global_batch"].isin(shared)], metric.sign)
        for key, line in lines
        if len(shared) > 1
    ]
    names = ["lost", "low", "high", "smallest_batch", "largest_batch", "num_batches", "num_seeds"]
    return pd.DataFrame(rows, columns=[*_LINE, *names])


def _slope(line: pd.DataFrame, sign: float) -> dict[str, float]:
    x = np.log2(line["global_batch"].to_numpy(dtype=float))
    weights = -(x - x.mean()) / ((x - x.mean()) ** 2).sum()
    count = line["values"].map(len).to_numpy(dtype=float)
    means = line["mean"].to_numpy(dtype=float)
    lost = sign * float(weights @ (means - means[0]))  # 0 of equal means, without rounding
    half = sum_half_width(weights, line["sd"].to_numpy(dtype=float), count)
    return {
        "lost": lost,
        "low": lost - half,
        "high": lost + half,
        "smallest_batch": int(line["global_batch"].min()),
        "largest_batch": int(line["global_batch"].max()),
        "num_batches": len(line),
        "num_seeds": int(count.min()),
    }


@style.look()
def draw_lost_per_doubling(
    compared: ComparableRuns, metric: Metric = ACCURACY, *, width: Width = "screen",
    ax: Given = None,
) -> Drawing | None:  # fmt: skip
    """What a doubling of the batch costs against the warmup, a colour per lr rule.

    With `ax` it is drawn into a figure of your own. None if no two batches are shared.
    """
    frame = lost_per_doubling(compared.runs, metric)
    if not len(frame):
        return None
    sheet = Sheet.new(width, ax)
    (axes,) = sheet.panels
    warmups = sorted(frame["warmup_epochs"].unique())
    style.warmup_axis(axes, warmups)
    axes.axhline(0, color=style.GREY, linewidth=0.6)
    marks = style.named_marks(sorted(frame["lr_rule"].unique()))
    for i, (rule, mark) in enumerate(marks.items()):
        line = frame[frame["lr_rule"] == rule]
        place = Lane(warmups, style.WARMUPS, i, len(marks)).at(line["warmup_epochs"])
        axes.vlines(place, line["low"], line["high"], color=mark.color, linewidth=0.7)
        axes.plot(
            place, line["lost"], " ", color=mark.color, marker=mark.marker, label=f"lr {rule}"
        )
    style.value_axis(axes, metric)
    unit = {"%": "[points]", "": ""}.get(metric.unit, f"[{metric.unit}]")
    verb = "lost" if metric.mode == "max" else "gained"
    sheet.label(WARMUP, f"{metric.word} {verb} per doubling {unit}".strip())
    first = frame.iloc[0]
    spans = f"batches from {first['smallest_batch']:,} to {first['largest_batch']:,}"
    note = (
        f"Least squares in log2 batch over {first['num_batches']} {spans}; bars: 95 % t intervals "
        "over seeds (Satterthwaite). Above 0, larger batches are worse."
    )
    left_out = diverged_in_words(compared.runs)
    notes = [note, f"{left_out[:1].upper()}{left_out[1:]}." if left_out else ""]
    if frame["low"].isna().any():
        notes.append("No bar where a batch has one seed, or all its seeds measured the same.")
    title = f"{style.title_word(metric)} {verb} per doubling of the batch: {compared.title}"
    return sheet.finish(frame, title, [compared.about, " ".join(filter(None, notes))])
