"""What depends on the length of training: the metric, the best and the critical batch."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from analysis.figures import style
from analysis.figures.final import BATCHES, limit_values
from analysis.figures.lines import Lane, draw_points
from analysis.figures.points import points, reading_note
from analysis.figures.sheet import Drawing, Sheet
from analysis.figures.style import Width
from analysis.stats.critical_branches import name_length
from analysis.tables.metric import Metric


@style.use_style()
def draw_over_training(
    found: pd.DataFrame, title: str, margin: float, unit: str = "examples", width: Width = "screen"
) -> Drawing:
    """Intervals of the critical batch at each position, from `critical_branches`."""
    frame = found.assign(top=found["below"].replace(np.inf, np.nan))
    frame["top"] = frame["top"].fillna(2 * max(frame[["least", "top", "estimate"]].max()))
    sheet = Sheet.new(width)
    (axes,) = sheet.panels
    axes.vlines(frame["position"], frame["least"], frame["top"], color="black",
                label="critical batch, 95 %")  # fmt: skip
    is_open = np.isinf(frame["below"])
    axes.plot(frame["position"][is_open], frame["top"][is_open], "^", color="black")
    axes.plot(frame["position"], frame["estimate"], "o", color="black", label="by the means alone")
    axes.plot(frame["position"], frame["noise_scale"], "s:", color=style.GREY, label="noise scale")
    axes.set_yscale("log", base=2)
    axes.set_xticks(sorted(frame["position"].unique()))
    sheet.label("position [epochs]", f"batch [{unit}]")
    note = (
        f"Lines: from the batch up to which branches are shown not to be worse (margin {margin:g}) "
        "to that from which they are shown to be worse; an arrow where no batch is. "
        f"{int(frame['num_seeds'].min())} or more seeds."
    )
    return sheet.finish(frame.drop(columns="top"), f"Critical batch over training: {title}", [note])


@style.use_style()
def draw_lengths(
    runs: pd.DataFrame, columns: Sequence[str], title: str, metric: Metric, width: Width = "screen"
) -> Drawing:
    """The metric at the end against the length, a line per batch at each length's best setting.

    Runs and the columns of the settings that vary at a batch are those of `runs_of_lengths`.
    """
    point = ["data_seen", "global_batch"]
    done = runs[runs["outcome"] == "finished"].dropna(subset=[metric.name])
    means = done.groupby([*point, *columns], dropna=False)[metric.name].mean().reset_index()
    means = means.sort_values(metric.name, ascending=metric.sign < 0).drop_duplicates(point)
    frame = points(done.merge(means[[*point, *columns]], on=[*point, *columns]), metric.name, point)
    lengths, batches = (sorted(frame[name].unique()) for name in point)
    sheet = Sheet.new(width)
    (axes,) = sheet.panels
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [f"{length:,.0f}" for length in lengths])
    axes.minorticks_off()
    axes.grid(visible=True)
    for i, mark in enumerate(style.ordered_marks(len(batches))):
        line, label = frame[frame["global_batch"] == batches[i]], f"{batches[i]:,}"
        lane = Lane(lengths, index=i, count=len(batches))
        draw_points(axes, line, "data_seen", mark=mark, lane=lane, label=label)
    note = reading_note(frame) + limit_values(sheet.panels, frame, metric)
    sheet.label("length of training [examples]", style.value_label(metric))
    title = f"{style.title_word(metric)} at the end of each length: {title}"
    best = "Each batch at the best setting of each length." if columns else ""
    return sheet.finish(frame, title, [best, note], "global batch")


@style.use_style()
def draw_best_batches(
    runs: pd.DataFrame, columns: Sequence[str], curves: pd.DataFrame, metric: Metric,
    width: Width = "screen",
) -> Drawing:  # fmt: skip
    """The batch that was best at each length, by the means and by each seed, and the noise scale.

    Runs and the columns of the settings that vary at a batch, whose best counts, are those of
    `runs_of_lengths`. The noise scale is the last that their `curves` have.
    """
    last = curves.sort_values("step").drop_duplicates("run_id", keep="last").set_index("run_id")
    noise = runs["run_id"].map(last["noise_scale"]) if "noise_scale" in last else np.nan
    runs = runs.assign(noise_scale=noise)
    done = runs[runs["outcome"] == "finished"].dropna(subset=[metric.name])
    point, measures = ["data_seen", "global_batch"], {metric.name: "mean", "noise_scale": "median"}
    of_all = done.groupby([*point, *columns], dropna=False).agg(measures).reset_index()
    frame = pd.concat([of_all.assign(seed=np.nan), done[[*point, *columns, "seed", metric.name]]])
    frame = frame.sort_values(metric.name, ascending=metric.sign < 0)
    frame = frame.drop_duplicates(["data_seen", "seed"]).sort_values("data_seen")
    means = frame[frame["seed"].isna()]
    sheet = Sheet.new(width)
    (axes,) = sheet.panels
    axes.plot(frame["data_seen"], frame["global_batch"], ".", color=style.GREY, label="a seed's")
    axes.plot(means["data_seen"], means["global_batch"], "o-", color="black", label="best batch")
    if means["noise_scale"].notna().any():
        at = means["data_seen"], means["noise_scale"]
        axes.plot(*at, "s:", color=style.GREY, label="noise scale there")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(means["data_seen"], [f"{length:,.0f}" for length in means["data_seen"]])
    axes.minorticks_off()
    axes.grid(visible=True)
    sheet.label("length of training [examples]", "batch [examples]")
    note = "The best of the batches that were trained, each at the best rate of each length."
    return sheet.finish(frame, f"Best batch at each length, by {metric.label}", [note])


@style.use_style()
def draw_branches(
    differences: pd.DataFrame, title: str, metric: Metric, unit: str, width: Width = "screen"
) -> Drawing:
    """The metric of branches against their batch, a line per position.

    At the parents' batch it is that of their continuation; from `branch_differences`.
    """
    parents = differences.drop_duplicates(["position", "seed", "parent_batch"])
    parents = parents.assign(global_batch=parents["parent_batch"], value=parents["of_parent"])
    is_larger = differences["global_batch"] > differences["parent_batch"]
    rows = pd.concat([parents, differences[is_larger]])
    rows["outcome"] = np.where(rows["value"].isna(), "diverged", "finished")
    rows = rows.rename(columns={"value": metric.name})
    frame = points(rows, metric.name, ["position", "global_batch"])
    places, positions = (sorted(frame[name].unique()) for name in ("global_batch", "position"))
    sheet = Sheet.new(width)
    BATCHES.draw(sheet.panels[0], places)
    for i, mark in enumerate(style.ordered_marks(len(positions))):
        line = frame[frame["position"] == positions[i]]
        lane = Lane(places, index=i, count=len(positions))
        draw_points(sheet.panels[0], line, "global_batch", mark=mark, lane=lane,
                    label=f"{positions[i]:g}")  # fmt: skip
    note = reading_note(frame) + limit_values(sheet.panels, frame, metric)
    sheet.label(f"global batch [{unit}]", style.value_label(metric))
    title = f"{style.title_word(metric)} {name_length(differences)}: {title}"
    return sheet.finish(frame, title, [note], "position [epochs]")
