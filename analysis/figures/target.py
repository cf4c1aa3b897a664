"""Steps to a target against the batch, with perfect scaling and the fitted hyperbola."""

import numpy as np
import pandas as pd

from analysis.figures import style
from analysis.figures.final import CUT
from analysis.figures.lines import Lane, draw_points
from analysis.figures.points import points
from analysis.figures.sheet import Drawing, Given, Sheet
from analysis.figures.style import Width
from analysis.stats.doubling import describe_doubling
from analysis.tables.comparable_runs import example_unit
from sweeper.spec.sentences import several

_DRAWN = 100  # places of a curve


def best_reached(reached: pd.DataFrame) -> pd.DataFrame:
    """The fewest steps of each batch and seed, from what `to_target` returns."""
    whole = whole_seed_runs(reached)
    return whole.sort_values("steps_to_target").drop_duplicates(["global_batch", "seed"])


def whole_seed_runs(runs: pd.DataFrame) -> pd.DataFrame:
    """At each batch, the runs of the seeds with the most settings; of two seeds or more.

    A seed that ran fewer settings has a worse best for that reason alone. It would count as noise,
    and against batches where seeds were added at a setting that is not the best.

    Uses `global_batch`, `seed`, `warmup_epochs` and `lr_rule`.
    """
    settings = runs.drop_duplicates(["global_batch", "seed", "warmup_epochs", "lr_rule"])
    counts = settings.groupby(["global_batch", "seed"]).size()
    most = counts.groupby("global_batch").agg(lambda of_seeds: of_seeds.nlargest(2).min())
    own = pd.MultiIndex.from_frame(runs[["global_batch", "seed"]])
    kept = counts.reindex(own).to_numpy() >= most.reindex(runs["global_batch"]).to_numpy()
    return runs[kept]


@style.use_style()
def draw_steps_to_target(
    reached: pd.DataFrame, goal: str, about: str = "", *, width: Width = "screen", ax: Given = None
) -> Drawing | None:
    """Steps to a target against the batch, with what perfect scaling would be.

    ``steps = fewest_steps + fewest_examples / batch`` is drawn where it is not rejected.
    With `ax` it is drawn into a figure of your own.

    `reached` has a row per replicate, as `best_reached` returns it.

    Returns:
        None if the target was reached at fewer than two batches.
    """
    done = reached[reached["reached_target"]].assign(outcome="finished")
    if done["global_batch"].nunique() < 2:
        return None
    frame = _widen_coarse(points(done, "steps_to_target", ["global_batch"]), done)
    batches = frame["global_batch"].tolist()
    frame["perfect_scaling"] = frame["mean"].iloc[0] * batches[0] / frame["global_batch"]
    sheet = Sheet.new(width, ax)
    (axes,) = sheet.panels
    style.batch_axis(axes, batches)
    axes.set_yscale("log")
    axes.grid(visible=True, axis="y")
    (mark,) = style.ordered_marks(1)
    draw_points(axes, frame, "global_batch", mark=mark, lane=Lane(batches), label="measured")
    axes.plot(batches, frame["perfect_scaling"], "--", color=style.GREY, label="perfect scaling")
    seen = [*done["steps_to_target"], *frame["perfect_scaling"]]
    axes.set_ylim(min(seen) / 1.3, max(seen) * 1.3)
    doubling, fit, answers = describe_doubling(reached)
    words = " ".join(dict.fromkeys(answer.words for answer in answers))
    if doubling and batches[0] <= doubling.value <= batches[-1]:
        axes.axvline(doubling.value, color=style.GREY, linewidth=0.7, label="examples double")
    if fit and not np.isnan(fit.critical_batch.value):
        at = np.geomspace(batches[0], batches[-1], _DRAWN)
        axes.plot(at, fit.fewest_steps + fit.fewest_examples / at, ":", color="#0072b2",
                  label="fitted hyperbola")  # fmt: skip
        value = fit.critical_batch.value
        if batches[0] <= value <= batches[-1]:
            axes.axvline(value, color="#0072b2", linewidth=0.7, label="E_min / S_min")
    missed = reached[~reached["reached_target"]]
    named = ", ".join(f"{batch:,}" for batch in sorted(missed["global_batch"].unique()))
    unmet = f"{several(len(missed), 'replicate')} never reached it (batch {named})."
    bars = ", with 95 % t intervals" if frame["low"].notna().any() else ""
    bars += ", no narrower than between two evaluations" * ("steps_to_target_spacing" in done)
    note = f"Marks: means{bars}; small dots: replicates."
    note += CUT if (frame["low"] < axes.get_ylim()[0]).any() else ""
    sheet.label(f"global batch [{example_unit(reached)}]", f"steps to {goal}")
    title = f"Steps to {goal} against batch"
    lines = [about, " ".join([note, words, unmet if len(missed) else ""]).strip()]
    return sheet.finish(frame, title, lines)


def _widen_coarse(frame: pd.DataFrame, done: pd.DataFrame) -> pd.DataFrame:
    """Intervals at least as wide as 95 % of the time between two evaluations."""
    if "steps_to_target_spacing" not in done:
        return frame
    half = 0.475 * done.groupby("global_batch")["steps_to_target_spacing"].mean().to_numpy()
    low = (frame["mean"] - half).where(frame["num_finished"] > 1)
    high = (frame["mean"] + half).where(frame["num_finished"] > 1)
    return frame.assign(low=np.fmin(frame["low"], low), high=np.fmax(frame["high"], high))
