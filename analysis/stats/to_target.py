"""When runs reach a target: between which evaluations, and at which learning rate."""

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.stats.replicates import Array
from analysis.tables.comparable_runs import stored_configs
from analysis.tables.metric import ACCURACY, Metric

#: If a run takes fewer to the target, it is not known well where it was reached [evaluations].
FEWEST_EVALUATIONS = 4

#: A rate below this share of the highest before has fallen; digits of a rate do not matter.
_FALLEN = 0.99

#: Schedules that lower the rate at no time that depends on the run's end, or only near it, and
#: last, those that grow the batch instead, whatever that does to the rate.
_STEADY = ("None", "constant", "wsd", "batch_warmup", "growing_batch", "seesaw")

#: Columns of curves that tell how far training is, and what each is at the target.
_CLOCKS = {
    "epoch": "epochs_to_target",
    "step": "steps_to_target",
    "examples_seen": "examples_to_target",
    "evaluation": "evaluations_to_target",
}


def to_target(
    runs: pd.DataFrame, curves: pd.DataFrame, target: float, metric: Metric = ACCURACY
) -> pd.DataFrame:
    """When each run first reached the target on the validation set.

    Uses `run_id`, `outcome` of the runs, and `run_id`, `epoch`, `step`, `examples_seen`, the metric
    and, where they have it, `lr` of the curves; without rates, `config_json` of the runs. The
    target is in the unit of the metric (accuracies: 0 to 1).

    Returns:
        The runs that finished or diverged, with `epochs_to_target`, `steps_to_target`,
        `examples_to_target`, `evaluations_to_target` (null: never reached) and `reached_target`;
        each also with `_spacing`, how far around it the place may be; `missed_until`, the examples
        at whose end a rate that had not fallen had not reached it, and `rate_fell`, whether it
        fell before the target. Of a run that finished and has no curve, whose file may be damaged,
        this is not known: it is left out.
    """
    has_curve = runs["run_id"].isin(curves.loc[curves[metric.name].notna(), "run_id"].unique())
    ended = runs[(runs["outcome"] == "diverged") | (has_curve & (runs["outcome"] == "finished"))]
    joined = ended.merge(first_reached(curves, target, metric), on="run_id", how="left")
    return mark_falls(joined.assign(reached_target=joined["steps_to_target"].notna()), curves)


def mark_falls(reached: pd.DataFrame, curves: pd.DataFrame) -> pd.DataFrame:
    """With `missed_until` and `rate_fell` of `to_target`."""
    steady = curves[steady_part(reached, curves)].groupby("run_id")["examples_seen"].max()
    until = reached["run_id"].map(steady).fillna(0.0)
    seen = reached["run_id"].map(curves.groupby("run_id")["examples_seen"].max())
    fell = until < reached["examples_to_target"].fillna(seen)
    return reached.assign(missed_until=until, rate_fell=fell)


def steady_part(runs: pd.DataFrame, curves: pd.DataFrame) -> pd.Series:
    """Which rows of the curves are from before the learning rate first fell.

    A warmup does not count, nor what a batch that grows does to its rate.
    """
    if "config_json" not in runs:
        names = pd.Series("None", index=runs["run_id"])
    else:
        own = [str(config.settings.get("schedule.name")) for config in stored_configs(runs)]
        names = pd.Series(own, index=runs["run_id"])
    name = curves["run_id"].map(names)
    if "lr" not in curves:
        return name.isna() | name.isin(_STEADY)
    ordered = curves.sort_values(["run_id", "step"])
    peak = ordered.groupby("run_id")["lr"].cummax()
    is_down = (ordered["lr"] < _FALLEN * peak).groupby(ordered["run_id"]).cummax()
    is_down = is_down.where(ordered["lr"].notna(), ~(name.isna() | name.isin(_STEADY)))
    return ~is_down.astype(bool).reindex(curves.index) | name.isin(_STEADY[3:])


def reachable_targets(runs: pd.DataFrame, metric: Metric, fewest: int = 3) -> list[float]:
    """Targets 2 % short of what half of the seeds reach: at every batch, at all but one, and so on.

    The last is one that the fewest batches reach. Uses `global_batch`, `seed` and the metric; of
    several settings the best counts.
    """
    signed = runs.assign(value=metric.sign * runs[metric.name])
    best = signed.groupby(["global_batch", "seed"])["value"].max()
    # of the two middle seeds the worse, which half of them reach
    half = best.groupby("global_batch").quantile(0.5, interpolation="lower").dropna().sort_values()
    reached = half.iloc[: max(1, len(half) + 1 - fewest)].to_numpy()
    return [float(value) for value in metric.sign * (reached - 0.02 * np.abs(reached))]


def steady_targets(
    runs: pd.DataFrame, curves: pd.DataFrame, is_steady: pd.Series, metric: Metric, fewest: int = 3
) -> list[float]:
    """`reachable_targets` before the rate falls; none where that is in the first third of a run."""
    rows = curves[metric.name].notna()
    ordered = curves[rows].assign(is_steady=is_steady).sort_values("step")
    share = ordered.groupby("run_id")["is_steady"].mean()
    last = ordered[ordered["is_steady"]].groupby("run_id")[metric.name].last()
    value = runs["run_id"].map(last.where(share.reindex(last.index) >= 1 / 3))
    return reachable_targets(runs.assign(**{metric.name: value}), metric, fewest)


def first_reached(curves: pd.DataFrame, target: float, metric: Metric = ACCURACY) -> pd.DataFrame:
    """Where each curve reaches the target for good, interpolated between evaluations.

    The first evaluation beyond the target is early where evaluations are noisy, and the last one
    below it late. So the values up to a curve's best one are sorted, which leaves a curve that only
    rises as it is: as many evaluations were below the target as are then before it.

    The clocks are 0 at the start; a target that is reached before the first evaluation is placed
    there. Where between two evaluations it was reached is not measured. In a curve that bends to
    one side it lies between the chord and those of the evaluations before and after, and in a
    parabola where the mean of both says; without these it is on the chord, or anywhere.

    Returns:
        a row per run that reaches it: `run_id` and `_CLOCKS`, each also with `_spacing`.

    Source:
        Chernozhukov et al. 2010, Econometrica 78, 1093-1125 (sorting).
    """
    clocks = list(_CLOCKS)
    known = curves[curves[metric.name].notna()]
    ordered = known.sort_values(["run_id", "step"], ignore_index=True)
    signed = metric.sign * ordered[metric.name].astype(float)
    best = signed.groupby(ordered["run_id"]).idxmax()
    is_rise = ordered.index <= ordered["run_id"].map(best)
    ordered, signed = ordered[is_rise].reset_index(drop=True), signed[is_rise]
    run = ordered["run_id"]
    if "evaluation" not in ordered:
        ordered["evaluation"] = ordered.groupby("run_id").cumcount() + 1.0
    value = signed.reset_index(drop=True).iloc[np.lexsort((signed, pd.factorize(run)[0]))]
    value = value.reset_index(drop=True)
    level = metric.sign * target
    hit = ordered[value >= level].drop_duplicates("run_id").index
    by_run = value.groupby(run)
    far, before, at, after = (by_run.shift(n).loc[hit].to_numpy(float) for n in (2, 1, 0, -1))
    share = np.where(np.isnan(before), 1.0, _divide(level - before, at - before))
    left = _divide(level - before, before - far)
    right = 1 - _divide(at - level, after - at)
    is_open = np.isnan(left) | np.isnan(right)
    left, right = (np.clip(np.where(is_open, share, end), 0, 1) for end in (left, right))
    width = np.where(is_open, 1.0, np.ptp([share, left, right], axis=0))
    share = share + ((left - share) * (1 - share) + (right - share) * share) / 4
    start = ordered.groupby("run_id")[clocks].shift().loc[hit].fillna(0.0)
    apart = ordered.loc[hit, clocks] - start
    places = (start + apart.mul(share, axis=0)).rename(columns=_CLOCKS)
    spacings = apart.mul(width, axis=0).rename(columns=_CLOCKS).add_suffix("_spacing")
    return places.join(spacings).assign(run_id=run.loc[hit])


def _divide(rise: NDArray[np.floating], slope: NDArray[np.floating]) -> Array:
    """The share at which a line has risen so far; infinite if it does not rise."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(slope > 0, rise / slope, np.where(np.isnan(slope), np.nan, np.inf))


def evaluations_to_target(reached: pd.DataFrame) -> tuple[pd.Series, str]:
    """Evaluations that each batch took to the target, and what they are called: maybe epochs."""
    column, epochs = "evaluations_to_target", reached["epochs_to_target"]
    is_each = column not in reached or reached[column].equals(epochs.astype(float))
    column = "epochs_to_target" if is_each else column
    return reached.groupby("global_batch")[column].mean(), column.partition("_")[0]


def at_their_ends(
    runs: pd.DataFrame, curves: pd.DataFrame, metric: Metric = ACCURACY
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Runs of several lengths, as one run for each batch and seed that is evaluated at their ends.

    What a run of a length reaches at its end does not depend on where its rate fell before, so such
    a curve has no rate, and its evaluations count as epochs. Of several settings the best at a
    length counts. Uses `run_id`, `outcome`, `global_batch`, `seed` of the runs.
    """
    by = ["global_batch", "seed"]
    finished = runs[runs["outcome"] == "finished"]
    first = finished.groupby(by)["run_id"].transform("first")
    ends = curves.sort_values("step").drop_duplicates("run_id", keep="last")
    ends = ends.assign(run_id=ends["run_id"].map(dict(zip(finished["run_id"], first, strict=True))))
    ends = ends[ends["run_id"].notna()].sort_values(metric.name, ascending=metric.sign < 0)
    ends = ends.drop_duplicates(["run_id", "step"])
    # with neither schedule nor rate, nothing counts as a fall
    whole = finished.drop_duplicates(by).drop(columns="config_json")
    ends = ends.assign(evaluation=ends["epoch"].astype(float)).drop(columns="lr", errors="ignore")
    return whole, ends
