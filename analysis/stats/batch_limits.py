"""Batches that are too large: where the metric breaks, and where examples to a target double."""

from dataclasses import dataclass, replace

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
    describe_diverged,
    format_interval,
    percentile_interval,
    student_factor,
)
from analysis.stats.wild import add_without, drop_wild
from analysis.tables.metric import ACCURACY, Metric

#: If a run takes fewer to the target, it is not known well where it was reached [evaluations].
FEWEST_EVALUATIONS = 4

#: A fit is rejected if the p value of its lack of fit is smaller than this.
REJECTED = 0.05

#: A hyperbola that the seeds reject still describes means that are all as near [fraction of it].
CLOSE = 0.1

#: Columns of curves that tell how far training is, and what each is at the target.
_CLOCKS = {
    "epoch": "epochs_to_target",
    "step": "steps_to_target",
    "examples_seen": "examples_to_target",
    "evaluation": "evaluations_to_target",
}

#: Points and measure of examples to a target.
_BY = ["global_batch"], "examples_to_target"


def to_target(
    runs: pd.DataFrame, curves: pd.DataFrame, target: float, metric: Metric = ACCURACY
) -> pd.DataFrame:
    """When each run first reached the target on the validation set.

    Uses `run_id`, `outcome` of the runs, and `run_id`, `epoch`, `step`, `examples_seen`,
    and the metric of the curves. The target is in the unit of the metric (accuracies: 0 to 1).

    Returns:
        The runs that finished or diverged, with `epochs_to_target`, `steps_to_target`,
        `examples_to_target`, `evaluations_to_target` (null: never reached) and `reached_target`;
        each also with `_spacing`, between the evaluations on either side.
        Of a run that finished and has no curve, whose file may be damaged, this is not known: it
        is left out.
    """
    has_curve = runs["run_id"].isin(curves.loc[curves[metric.name].notna(), "run_id"].unique())
    ended = runs[(runs["outcome"] == "diverged") | (has_curve & (runs["outcome"] == "finished"))]
    joined = ended.merge(first_reached(curves, target, metric), on="run_id", how="left")
    return joined.assign(reached_target=joined["steps_to_target"].notna())


def reachable_target(runs: pd.DataFrame, metric: Metric) -> float:
    """A target that every seed reaches at three batches: 2 % short of their final metric.

    Uses `global_batch`, `seed` and the metric; of several settings the best counts.
    """
    signed = runs.assign(value=metric.sign * runs[metric.name])
    best = signed.groupby(["global_batch", "seed"])["value"].max()
    worst_seed = best.groupby("global_batch").min().sort_values(ascending=False)
    reached = float(worst_seed.iloc[min(2, len(worst_seed) - 1)])
    return metric.sign * (reached - 0.02 * abs(reached))


def first_reached(curves: pd.DataFrame, target: float, metric: Metric = ACCURACY) -> pd.DataFrame:
    """Where each curve first reaches the target, interpolated linearly between evaluations.

    The clocks are 0 at the start; a target that is reached before the first evaluation is placed
    there. Where between the two evaluations it was reached is not measured, so their distance is
    kept with the place.

    Returns:
        a row per run that reaches it: `run_id` and `_CLOCKS`, each also with `_spacing`.
    """
    clocks = list(_CLOCKS)
    ordered = curves.sort_values(["run_id", "step"], ignore_index=True)
    ordered = ordered.assign(evaluation=ordered.groupby("run_id").cumcount() + 1.0)
    before = ordered.groupby("run_id")[[metric.name, *clocks]].shift()
    hit = ordered[metric.reaches(ordered[metric.name], target)].drop_duplicates("run_id")
    before = before.loc[hit.index]
    share = (target - before[metric.name]) / (hit[metric.name] - before[metric.name])
    share = share.fillna(1.0)
    start = before[clocks].fillna(0.0)
    apart = hit[clocks] - start
    places = (start + apart.mul(share, axis=0)).rename(columns=_CLOCKS)
    spacings = apart.rename(columns=_CLOCKS).add_suffix("_spacing")
    return places.join(spacings).assign(run_id=hit["run_id"])


def evaluations_to_target(reached: pd.DataFrame) -> tuple[pd.Series, str]:
    """Evaluations that each batch took to the target, and what they are called: maybe epochs."""
    column, epochs = "evaluations_to_target", reached["epochs_to_target"]
    is_each = column not in reached or reached[column].equals(epochs.astype(float))
    column = "epochs_to_target" if is_each else column
    return reached.groupby("global_batch")[column].mean(), column.partition("_")[0]


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
        farthest: the largest distance of a mean from the hyperbola [fraction; negative below].
        holds_up_to: the largest batch up to which the hyperbola is not rejected; nan if none.
        censored: batches left out because a run did not reach the target.
    """

    critical_batch: Estimate
    fewest_steps: float
    fewest_examples: float
    lack_of_fit: float
    lack_of_fit_p: float
    farthest: float
    holds_up_to: float
    censored: tuple[int, ...]


def critical_batch(
    reached: pd.DataFrame, rng: np.random.Generator, draws: int = DRAWS
) -> CriticalBatch:
    """Batch above which more examples per step buy little.

    ``examples = fewest_examples + fewest_steps * batch``, weighted least squares over batches,
    hence ``(S / S_min - 1) (E / E_min - 1) = 1``. The weights are replicates over the squared mean:
    the spread grows with the examples. If the scatter about the hyperbola is too large for that of
    the seeds, the interval is that of the scatter, as far as no mean is farther than a tenth from
    it; otherwise it has no such batch: see `doubling_batch`.

    Uses what `to_target` returns.

    Raises:
        ValueError: if fewer than three batches reach the target, or any in fewer than four
            evaluations.

    Returns:
        The fit over the batches where every run reached the target.

    Source:
        McCandlish et al. 2018, arXiv:1812.06162, equations 2.11 and 2.12.
    """
    cells, censored = _cells_to_target(reached)
    fit = _fit_hyperbola(cells, rng, draws)
    notes = [fit.critical_batch.note, _describe_censored(censored)]
    is_held = cells.points["global_batch"] <= fit.holds_up_to
    if is_held.any() and not is_held.all():
        up_to = _fit_hyperbola(cells.keep(is_held), rng, draws)
        next_batch = cells.points["global_batch"][~is_held].iloc[0]
        law = up_to.fewest_examples + up_to.fewest_steps * next_batch
        off = cells.means[~is_held][0] / law - 1
        more = f"{100 * abs(off):.2g} % {'more' if off > 0 else 'fewer'}"
        ratio = format_interval(up_to.critical_batch)
        notes.append(
            f"it holds up to {fit.holds_up_to:,.0f}, there with E_min / S_min {ratio}; "
            f"{next_batch:,} takes {more} examples than that"
        )
    found = replace(fit.critical_batch, note="; ".join(filter(None, notes)))
    kept, wild = drop_wild(reached.assign(outcome="finished"), *_BY)
    if wild:
        found = add_without(found, wild, critical_batch(kept, rng, draws).critical_batch)
    return replace(fit, critical_batch=found, censored=tuple(censored))


def _fit_hyperbola(cells: Replicates, rng: np.random.Generator, draws: int) -> CriticalBatch:
    batches = cells.points["global_batch"].to_numpy(dtype=float)
    weights = cells.counts / cells.means**2
    slope, intercept = _line(batches, cells.means[None, :], weights)
    value, drawn = _ratio(slope, intercept)[0], None
    fitted = intercept[0] + slope[0] * batches
    away = cells.means / fitted - 1
    far = int(np.abs(away).argmax())
    scatter, p = lack_of_fit(cells, batches, weights, fitted)
    is_rejected = p < REJECTED and scatter > 1
    is_off = is_rejected and abs(away[far]) > CLOSE
    notes = [cells.no_interval]
    if slope[0] * np.ptp(batches) <= ROUNDING * intercept[0]:
        value, notes = np.nan, ["examples to target do not grow with the batch", *notes]
    elif is_rejected:
        side = "above" if away[far] > 0 else "below"
        about = (
            f"(lack of fit F = {scatter:.3g}, p = {p:.2g}): "
            f"{batches[far]:,.0f} is {100 * abs(away[far]):.2g} % {side} it"
        )
        if is_off:
            value, notes = np.nan, [f"the hyperbola does not fit {about}"]
        else:
            free = len(batches) - 2
            spread = student_factor(free) * np.sqrt((away**2).sum() / free)
            means = fitted * (1 + spread * rng.normal(size=(draws, len(batches))))
            drawn = _ratio(*_line(batches, means, weights))
            notes = [f"the interval is from the scatter about the hyperbola {about}"]
    elif not cells.no_interval:
        unit = _line(batches, np.eye(len(batches)), weights)
        with np.errstate(divide="ignore", invalid="ignore"):  # without a slope there is no ratio
            gradient = unit[1] / intercept[0] - unit[0] / slope[0]  # of its logarithm
        means = cells.resampled_means(rng, draws, cells.freedom(gradient))
        drawn = _ratio(*_line(batches, means, weights))
    method = "line through examples to target, weights 1 / examples**2; 95 % percentile bootstrap"
    estimate = Estimate.from_draws(value, drawn, cells.num_seeds, method, *notes)
    held = float(batches[-1])
    if is_off:
        fewer = cells.keep(np.arange(len(batches)) < len(batches) - 1)
        held = _fit_hyperbola(fewer, rng, 2).holds_up_to if len(batches) > 3 else np.nan
    return CriticalBatch(
        estimate, float(slope[0]), float(intercept[0]), scatter, p, float(away[far]), held, ()
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
    found = Estimate(float(value[0]), low, high, cells.num_seeds, method, notes)
    kept, wild = drop_wild(reached.assign(outcome="finished"), *_BY)
    return add_without(found, wild, doubling_batch(kept, rng, draws)) if wild else found


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
        taken, unit = evaluations_to_target(usable)
        if (fewest := taken.min()) < FEWEST_EVALUATIONS:
            msg = (
                f"every batch must take {FEWEST_EVALUATIONS} {unit} or more to the target; "
                f"got {fewest:.2g}. Choose a target that is harder to reach."
            )
            raise ValueError(msg)
    return cells, censored


def lack_of_fit(cells: Replicates, x: Array, weights: Array, fitted: Array) -> tuple[float, float]:
    """F test of a weighted line in x through points with replicates, of whatever spreads.

    ``F = sum(w (mean - fitted)**2) / sum(w (1 - h) s**2 / n)`` with the leverages h, which without
    weights and with equal spreads is the textbook's; Satterthwaite's degrees of freedom.

    Returns:
        F, and its probability under the line; nan if no point has replicates that differ.

    Source:
        Brown & Forsythe 1974, Technometrics 16, 129-132; Mehrotra 1997, Communications in
        Statistics: Simulation and Computation 26, 1139-1145 (degrees of freedom).
    """
    if cells.no_interval or len(x) < 3:
        return np.nan, np.nan
    root = np.sqrt(weights)
    basis, _ = np.linalg.qr(np.stack([np.ones_like(x), x], axis=1) * root[:, None])
    rest = np.eye(len(x)) - basis @ basis.T
    noise = weights * cells.mean_variances
    parts = np.diag(rest) * noise
    product = rest * noise
    free_fit = parts.sum() ** 2 / (product * product.T).sum()
    own = np.where(cells.is_coarse, np.inf, cells.counts - 1)
    free_pure = parts.sum() ** 2 / max((parts**2 / own).sum(), 1e-9 * parts.sum() ** 2)
    f = float((weights * (cells.means - fitted) ** 2).sum() / parts.sum())
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
    found = Estimate(float(min(value[0], lost)), low, high, cells.num_seeds, method, notes)
    kept, wild = drop_wild(runs, ["global_batch"], metric.name)
    return (
        add_without(found, wild, breaking_batch(kept, rng, margin, draws, metric))
        if wild
        else found
    )


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
