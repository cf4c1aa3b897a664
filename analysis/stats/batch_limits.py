"""Batches that are too large: where the metric breaks."""

import numpy as np
import pandas as pd
from scipy.optimize import isotonic_regression

from analysis.stats.replicates import (
    DRAWS,
    Array,
    Estimate,
    Replicates,
    describe_diverged,
    percentile_interval,
)
from analysis.stats.wild import add_without, drop_wild
from analysis.tables.metric import ACCURACY, Metric

#: A fit is rejected if the p value of its lack of fit is smaller than this.
REJECTED = 0.05


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
