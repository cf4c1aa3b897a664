"""Where the metric breaks: the batch from which it is worse by more than a margin."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from scipy import stats
from scipy.optimize import isotonic_regression

from analysis.stats.outliers import add_without, drop_wild
from analysis.stats.replicates import (
    DRAWS,
    Array,
    Estimate,
    Replicates,
    describe_diverged,
    percentile_interval,
)
from analysis.stats.shared_variances import add_price, share_variances
from analysis.tables.metric import ACCURACY, Metric

#: A smooth fall is not used if the p value of its lack of fit is smaller than this.
_REJECTED = 0.05

#: Batches that a smooth fall needs; it has three parameters besides the level.
_FEWEST_BATCHES = 4

#: Powers of the batch that a fall may follow; below 0 it levels off.
_POWERS = np.array([-1.5, -1, -0.6, -0.3, 0.01, 0.3, 0.6, 0.8, 1, 1.3, 1.6, 2, 2.5, 3, 4, 6, 9])

#: Places that are tried for the break, from the smallest batch to so many times the largest, and
#: for the start of the fall between two batches.
_PLACES, _BEYOND, _STARTS = 300, 16, 4


def breaking_batch(
    runs: pd.DataFrame,
    rng: np.random.Generator,
    margin: float = 0.005,
    draws: int = DRAWS,
    metric: Metric = ACCURACY,
    price: Mapping[int, float] | None = None,
) -> Estimate:
    """The smallest batch whose metric is worse than the smallest batch's by more than a margin.

    The loss follows ``margin (b**g - b1**g) / (B**g - b1**g)`` above a batch b1, with any g and b1:
    the interval holds each B whose best fit is as good as the best of all, by an F quantile for
    place and shape, widened by the lack of fit. Where the law is rejected, or a sudden fall between
    two neighbours is shown, or there are three batches or fewer, it makes way for isotonic
    regression: what lies between two batches is then not known, and the interval goes from the last
    batch that holds to the first that breaks, each over bootstrap draws.
    A larger batch at which half or more of the runs diverged counts as a batch that breaks. Beyond
    the largest batch nothing is said.

    Uses `outcome`, `global_batch` and the metric of runs of a single warmup and rule. The margin is
    the accepted loss, in the unit of the metric (accuracies: 0 to 1); the price is a variance to be
    added to a batch's mean, such as that of having chosen its setting from the same seeds.

    Returns:
        The breaking batch [examples]; infinite if the metric holds up to the largest batch.
    """
    lost = _first_lost(runs)
    held = runs[runs["global_batch"] < lost]
    cells, left_out = Replicates.from_runs(held, ["global_batch"], metric.name).drop_single()
    batches = cells.points["global_batch"].to_numpy(dtype=float)
    extra = np.array([(price or {}).get(int(batch), 0.0) for batch in batches])
    worse = f"{100 * margin:g} points below" if metric.unit == "%" else f"{margin:.3g} worse than"
    method = f"margin {worse} batch {batches[0]:,.0f}; 95 %"
    weights = cells.counts.astype(float)
    signed = metric.sign * cells.means
    _, places, _ = crossings(batches, signed[None, :], weights, margin)
    value, low, high, ends = float(places[0]), np.nan, np.nan, cells.no_interval
    if not cells.no_interval:
        # Freedom of the reference, the batch before and the batch after.
        means = cells.resampled_means(rng, draws, 3 * (cells.num_seeds - 1))
        means = means + np.sqrt(extra) * rng.normal(size=means.shape)
        last, _, first = crossings(batches, metric.sign * means, weights, margin)
        low, high = percentile_interval(last)[0], percentile_interval(first)[1]
        ends = "the ends are batches that were run" if np.isfinite(value) else ""
        are_neighbours = np.isfinite(high) and not ((batches > low) & (batches < high)).any()
        if not are_neighbours and len(batches) >= _FEWEST_BATCHES:
            errors, freedom, _ = add_price(*share_variances(cells), extra)
            smooth = fit_fall(batches, signed, errors, float(freedom.min()), margin)
            if smooth is not None:
                (value, low, high), ends = smooth, ""
    up_to = f"{metric.word} holds up to batch {batches[-1]:,.0f}"
    holds = up_to if np.isinf(value) else ""
    if holds and np.isfinite(lost):
        holds = f"{up_to}, half or more of the runs diverged at {lost:,.0f}"
    notes = "; ".join(filter(None, [holds, ends, left_out, describe_diverged(runs)]))
    value, high = min(value, lost), float(np.fmin(high, lost)) if np.isfinite(low) else high
    found = Estimate(value, low, high, cells.num_seeds, method, notes)
    kept, wild = drop_wild(runs, ["global_batch"], metric.name)
    if not wild:
        return found
    return add_without(found, wild, breaking_batch(kept, rng, margin, draws, metric, price))


def fit_fall(
    batches: Array, means: Array, errors: Array, freedom: float, margin: float
) -> tuple[float, float, float] | None:
    """Where a smooth monotone fall has lost the margin, with its 95 % profile interval.

    Args:
        batches: in rising order.
        means: larger is better.
        errors: variance of each mean, above 0.
        freedom: degrees of freedom of the variances.
        margin: loss at the break.

    Returns:
        The break, and the ends of its interval, infinite beyond the largest batch, the lower at
        most that; None if the law does not fit.
    """
    if not (errors > 0).all():
        return None
    x = np.log(batches / batches[0])
    places = np.linspace(0, x[-1] + np.log(_BEYOND), _PLACES + 1)[1:]
    misfit = np.full(len(places), np.inf)
    weights = 1 / errors
    steps = np.arange(_STARTS) / _STARTS
    for start in (x[:-1, None] + np.diff(x)[:, None] * steps).ravel():
        later = places > start
        fall = np.expm1(_POWERS[:, None] * np.maximum(x - start, 0)) / _POWERS[:, None]
        whole = np.expm1(_POWERS * (places[later] - start)[:, None]) / _POWERS
        above = means + margin * fall / whole[:, :, None]
        level = above @ weights / weights.sum()
        fits = ((above - level[..., None]) ** 2) @ weights
        misfit[later] = np.minimum(misfit[later], fits.min(axis=1))
    best, free = int(misfit.argmin()), len(batches) - 3
    scatter = max(1.0, misfit[best] / free)
    if stats.f.sf(misfit[best] / free, free, freedom) < _REJECTED:
        return None
    held = batches[0] * np.exp(places)
    limit = 2 * stats.f.ppf(0.95, 2, freedom) * scatter
    inside = np.flatnonzero(misfit <= misfit[best] + limit)
    low = batches[0] if inside[0] == 0 else held[inside[0]]
    value, high = (end if end <= batches[-1] else np.inf for end in held[[best, inside[-1]]])
    return float(value), float(min(low, batches[-1])), float(high)


def _first_lost(runs: pd.DataFrame) -> float:
    """The first batch above a holding batch at which half or more runs diverged; inf if none."""
    counts = pd.crosstab(runs["global_batch"], runs["outcome"])
    counts = counts.reindex(columns=["diverged", "finished"], fill_value=0)
    is_lost = counts["diverged"].ge(counts["finished"].clip(lower=1))
    first_held = counts.index[~is_lost & (counts["finished"] > 0)].min()
    lost = counts.index[is_lost & (counts.index > first_held)]
    return float(lost.min()) if len(lost) else np.inf


def crossings(
    batches: Array, means: Array, weights: Array, margin: float
) -> tuple[Array, Array, Array]:
    """Where each row, made to only fall (isotonic regression), is below its first by the margin.

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
