"""Batches that are too large: where the metric breaks, and where examples to a target double."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats
from scipy.optimize import isotonic_regression

from analysis.stats.replicates import (
    DRAWS,
    ROUNDING,
    Array,
    Estimate,
    Replicates,
    are_equal,
    describe_diverged,
    percentile_interval,
)
from analysis.tables.metric import ACCURACY, Metric

#: If a run takes fewer to the target, it is not known well where it was reached [epochs].
FEWEST_EPOCHS = 4

#: A fit is rejected if the p value of its lack of fit is smaller than this.
REJECTED = 0.05


def to_target(
    runs: pd.DataFrame, curves: pd.DataFrame, target: float, metric: Metric = ACCURACY
) -> pd.DataFrame:
    """When each run first reached the target on the validation set.

    Uses `run_id`, `outcome` of the runs, and `run_id`, `epoch`, `step`, `examples_seen`,
    and the metric of the curves. The target is in the unit of the metric (accuracies: 0 to 1).

    Returns:
        The runs that finished or diverged, with `epochs_to_target`, `steps_to_target`,
        `examples_to_target` (null: never reached) and `reached_target`. Of a run that finished and
        has no curve, whose file may be damaged, this is not known: it is left out.
    """
    has_curve = runs["run_id"].isin(curves.loc[curves[metric.name].notna(), "run_id"])
    ended = runs[(runs["outcome"] == "diverged") | (has_curve & (runs["outcome"] == "finished"))]
    clocks = {"epoch": "epochs", "step": "steps", "examples_seen": "examples"}
    names = {clock: f"{unit}_to_target" for clock, unit in clocks.items()}
    first = first_reached(curves, target, metric, list(names)).rename(columns=names)
    joined = ended.merge(first, on="run_id", how="left")
    return joined.assign(reached_target=joined["steps_to_target"].notna())


def first_reached(
    curves: pd.DataFrame, target: float, metric: Metric, clocks: list[str]
) -> pd.DataFrame:
    """Where each curve first reaches the target, interpolated linearly between epoch ends.

    The clocks are 0 at the start; a target that is reached in the first epoch is placed at its
    end.

    Returns:
        a row per run that reaches it: `run_id` and the clocks.
    """
    ordered = curves.sort_values(["run_id", "epoch"], ignore_index=True)
    before = ordered.groupby("run_id")[[metric.name, *clocks]].shift()
    hit = ordered[metric.reaches(ordered[metric.name], target)].drop_duplicates("run_id")
    before = before.loc[hit.index]
    share = (target - before[metric.name]) / (hit[metric.name] - before[metric.name])
    share = share.fillna(1.0)
    start = before[clocks].fillna(0.0)
    places = start + (hit[clocks] - start).mul(share, axis=0)
    return places.assign(run_id=hit["run_id"])


@dataclass(frozen=True, slots=True)
class CriticalBatch:
    """Fit of examples to target against the batch.

    Attributes:
        critical_batch: `E_min / S_min`, where the fitted examples are twice the fewest [examples];
            nan if the hyperbola is rejected.
        fewest_steps: limit for large batches [steps].
        fewest_examples: limit for small batches [examples].
        lack_of_fit: F of the means' scatter about the hyperbola against the scatter of seeds.
        lack_of_fit_p: probability of an F this large if the hyperbola holds.
        censored: batches left out because a run did not reach the target.
    """

    critical_batch: Estimate
    fewest_steps: float
    fewest_examples: float
    lack_of_fit: float
    lack_of_fit_p: float
    censored: tuple[int, ...]


def critical_batch(
    reached: pd.DataFrame, rng: np.random.Generator, draws: int = DRAWS
) -> CriticalBatch:
    """Batch above which more examples per step buy little.

    ``examples = fewest_examples + fewest_steps * batch``, weighted least squares over batches
    (weights: replicates), hence ``(S / S_min - 1) (E / E_min - 1) = 1``. If the scatter about the
    hyperbola is too large for that of the seeds, it has no such batch: see `doubling_batch`.

    Uses what `to_target` returns.

    Raises:
        ValueError: if fewer than three batches reach the target, or any in fewer than four epochs.

    Returns:
        The fit over the batches where every run reached the target.

    Source:
        McCandlish et al. 2018, arXiv:1812.06162, equations 2.11 and 2.12.
    """
    cells, censored = _cells_to_target(reached)
    batches = cells.points["global_batch"].to_numpy(dtype=float)
    weights = cells.counts.astype(float)
    slope, intercept = _line(batches, cells.means[None, :], weights)
    value, drawn = _ratio(slope, intercept)[0], None
    if slope[0] * np.ptp(batches) <= ROUNDING * intercept[0]:
        value = np.nan
    if not cells.no_interval:
        unit = _line(batches, np.eye(len(batches)), weights)
        with np.errstate(divide="ignore", invalid="ignore"):  # without a slope there is no ratio
            gradient = unit[1] / intercept[0] - unit[0] / slope[0]  # of its logarithm
        means = cells.resampled_means(rng, draws, cells.freedom(gradient))
        drawn = _ratio(*_line(batches, means, weights))
    fitted = intercept[0] + slope[0] * batches
    scatter, p = lack_of_fit(cells.values, fitted, num_parameters=2)
    notes = [
        "examples to target do not grow with the batch" if np.isnan(value) else "",
        _describe_censored(censored),
        cells.no_interval,
    ]
    if drawn is not None and p < REJECTED and scatter > 1:
        value, drawn = np.nan, None
        notes[0] = f"the hyperbola does not fit (lack of fit F = {scatter:.3g}, p = {p:.2g})"
    method = "line through examples to target; 95 % percentile bootstrap over seeds"
    estimate = Estimate.from_draws(value, drawn, cells.num_seeds, method, *notes)
    return CriticalBatch(
        estimate, float(slope[0]), float(intercept[0]), scatter, p, tuple(censored)
    )


def doubling_batch(reached: pd.DataFrame, rng: np.random.Generator, draws: int = DRAWS) -> Estimate:
    """The batch at which examples to target are twice those of the smallest batch.

    Without a model: the means are made to only grow with the batch (isotonic regression) and joined
    by straight lines in logarithms; the interval is that of `breaking_batch`, between batches that
    were run. Uses and raises what `critical_batch` does.

    Returns:
        The batch [examples]; infinite if they do not double up to the largest.
    """
    cells, censored = _cells_to_target(reached)
    batches, weights = cells.points["global_batch"].to_numpy(float), cells.counts.astype(float)
    _, value, _ = _crossings(batches, -np.log(cells.means[None, :]), weights, np.log(2))
    low, high = np.nan, np.nan
    if not cells.no_interval:
        means = cells.resampled_means(rng, draws, 3 * (cells.num_seeds - 1))
        means = np.maximum(means, ROUNDING * cells.means)  # few seeds may be drawn below 0
        last, _, first = _crossings(batches, -np.log(means), weights, np.log(2))
        low, high = percentile_interval(last)[0], percentile_interval(first)[1]
    method = (
        f"isotonic in log batch, twice the examples of batch {batches[0]:,.0f}; "
        "95 % percentile bootstrap over seeds, between the batches that were run"
    )
    ends = cells.no_interval or "the ends are batches that were run"
    notes = "; ".join(filter(None, [ends, _describe_censored(censored)]))
    return Estimate(float(value[0]), low, high, cells.num_seeds, method, notes)


def _describe_censored(censored: list[int]) -> str:
    names = ", ".join(f"{batch:,}" for batch in censored)
    return f"left out, not every run reached the target: batch {names}" if censored else ""


def _cells_to_target(reached: pd.DataFrame) -> tuple[Replicates, list[int]]:
    """Examples to target at the batches where every run reached it, and the other batches."""
    censored = sorted(
        int(b) for b in reached.loc[~reached["reached_target"], "global_batch"].unique()
    )
    usable = reached[~reached["global_batch"].isin(censored)].assign(outcome="finished")
    cells = Replicates.from_runs(usable, ["global_batch"], "examples_to_target")
    if len(cells.values) < 3:
        has_more = reached["global_batch"].nunique() >= 3
        easier = "Choose a target that is easier to reach, or train longer."
        msg = (
            "three or more batches must reach the target in every run; got "
            f"{len(cells.values)}. {easier if has_more else 'Run more batches.'}"
        )
        raise ValueError(msg)
    if "epochs_to_target" in usable:
        fewest = usable.groupby("global_batch")["epochs_to_target"].mean().min()
        if fewest < FEWEST_EPOCHS:
            msg = (
                f"every batch must take {FEWEST_EPOCHS} epochs or more to the target; "
                f"got {fewest:.2g}. Choose a target that is harder to reach."
            )
            raise ValueError(msg)
    return cells, censored


def lack_of_fit(
    values: tuple[Array, ...], fitted: Array, num_parameters: int
) -> tuple[float, float]:
    """F test of a curve through points with replicates.

    Returns:
        F, and its probability under the curve; nan if no point has replicates that differ.
    """
    n = np.array([len(v) for v in values])
    free_pure, free_fit = int((n - 1).sum()), len(values) - num_parameters
    if free_pure == 0 or free_fit < 1 or all(map(are_equal, values)):
        return np.nan, np.nan
    pure = sum(float(((v - v.mean()) ** 2).sum()) for v in values) / free_pure
    means = np.array([v.mean() for v in values])
    f = float((n * (means - fitted) ** 2).sum()) / free_fit / pure
    return f, float(stats.f.sf(f, free_fit, free_pure))


def _line(batches: Array, means: Array, weights: Array) -> tuple[Array, Array]:
    x = batches - np.average(batches, weights=weights)
    slope = (means * weights) @ x / (weights @ (x * x))
    intercept = np.average(means, axis=1, weights=weights) - slope * (batches - x)[0]
    return slope, intercept


def _ratio(slope: Array, intercept: Array) -> Array:
    ratio = intercept / np.where(slope == 0, 1, slope)
    return np.where((slope > 0) & (intercept > 0), ratio, np.nan)


def breaking_batch(
    runs: pd.DataFrame,
    rng: np.random.Generator,
    margin: float = 0.005,
    draws: int = DRAWS,
    metric: Metric = ACCURACY,
) -> Estimate:
    """The smallest batch whose metric is worse than the smallest batch's by more than a margin.

    The metric is made to only worsen with the batch (isotonic regression weighted by replicates);
    the reference is the mean at the smallest batch. The estimate is interpolated in log batch by a
    straight line. What lies between two batches is not known, and a fall may be sudden: each
    bootstrap draw gives the last batch that holds and the first that breaks, and the interval spans
    both. A larger batch at which half or more of the runs diverged counts as a batch that breaks.

    Uses `outcome`, `global_batch` and the metric of runs of a single warmup and rule. The margin is
    the accepted loss, in the unit of the metric (accuracies: 0 to 1).

    Returns:
        The breaking batch [examples]; infinite if the metric holds up to the largest batch.
    """
    lost = _first_lost(runs)
    held = runs[runs["global_batch"] < lost]
    cells, left_out = Replicates.from_runs(held, ["global_batch"], metric.name).drop_single()
    batches = cells.points["global_batch"].to_numpy(dtype=float)
    worse = f"{100 * margin:g} points below" if metric.unit == "%" else f"{margin:.3g} worse than"
    method = (
        f"isotonic in log batch, margin {worse} batch {batches[0]:,.0f}; "
        "95 % percentile bootstrap over seeds, between the batches that were run"
    )
    weights = cells.counts.astype(float)
    _, value, beyond = _crossings(batches, metric.sign * cells.means[None, :], weights, margin)
    low, high = np.nan, np.nan
    if not cells.no_interval:
        # Freedom of the reference, the batch before and the batch after.
        means = cells.resampled_means(rng, draws, 3 * (cells.num_seeds - 1))
        last, _, first = _crossings(batches, metric.sign * means, weights, margin)
        low = percentile_interval(last)[0]
        high = percentile_interval(np.minimum(first, lost))[1]
    up_to = f"{metric.word} holds up to batch {batches[-1]:,.0f}"
    holds = up_to if np.isinf(beyond[0]) else ""
    if holds and np.isfinite(lost):
        holds = f"{up_to}, half or more of the runs diverged at {lost:,.0f}"
    ends = cells.no_interval or ("" if holds else "the ends are batches that were run")
    notes = "; ".join(filter(None, [holds, ends, left_out, describe_diverged(runs)]))
    return Estimate(float(min(value[0], lost)), low, high, cells.num_seeds, method, notes)


def _first_lost(runs: pd.DataFrame) -> float:
    """The first batch above a holding batch at which half or more runs diverged; inf if none."""
    counts = pd.crosstab(runs["global_batch"], runs["outcome"])
    counts = counts.reindex(columns=["diverged", "finished"], fill_value=0)
    is_lost = counts["diverged"].ge(counts["finished"].clip(lower=1))
    first_held = counts.index[~is_lost & (counts["finished"] > 0)].min()
    lost = counts.index[is_lost & (counts.index > first_held)]
    return float(lost.min()) if len(lost) else np.inf


def _crossings(
    batches: Array, means: Array, weights: Array, margin: float
) -> tuple[Array, Array, Array]:
    """Where each row falls below its first value by the margin.

    Returns:
        The last batch before, the place by a straight line in log batch, and the first batch after;
        for a row that does not fall that far, the last batch, and infinity twice.
    """
    last, place, first = (np.full(len(means), end) for end in (batches[-1], np.inf, np.inf))
    x = np.log(batches)
    for row, values in enumerate(means):
        fall = isotonic_regression(values, weights=weights, increasing=False).x
        below = np.flatnonzero(fall < values[0] - margin)
        if len(below):
            i = int(below[0])
            share = np.clip((fall[i - 1] - values[0] + margin) / (fall[i - 1] - fall[i]), 0, 1)
            last[row], first[row] = batches[i - 1], batches[i]
            place[row] = np.exp(x[i - 1] + share * (x[i] - x[i - 1]))
    return last, place, first
