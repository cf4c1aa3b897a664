"""The batch at which the metric breaks."""

import numpy as np
import pandas as pd
from scipy.interpolate import PchipInterpolator, make_interp_spline
from scipy.optimize import isotonic_regression

from analysis.stats.replicates import DRAWS, Array, Estimate, Replicates
from analysis.stats.shares import diverged_in_words
from analysis.tables.metric import ACCURACY, Metric

#: Places between the smallest and the largest batch at which interpolations are read.
_FINE = 2001


def breaking_batch(
    runs: pd.DataFrame,
    rng: np.random.Generator,
    margin: float = 0.005,
    draws: int = DRAWS,
    metric: Metric = ACCURACY,
) -> Estimate:
    """The smallest batch whose metric is worse than the smallest batch's by more than a margin.

    The metric is made to worsen with the batch (isotonic regression weighted by replicates) and
    interpolated in log batch by straight lines; the reference is the mean at the smallest batch.
    What lies between two batches is not known: half of the draws are interpolated by a monotone
    cubic, which breaks later where the fall grows. A larger batch at which every run diverged is
    one that breaks, and what holds before it may break anywhere in between.

    Uses `outcome`, `global_batch` and the metric of runs of one warmup and rule. The margin is
    the accepted loss, in the unit of the metric (accuracies: 0 to 1).

    Returns:
        The breaking batch [examples]; infinite if the metric holds up to the largest batch.
    """
    cells, left_out = Replicates.of(runs, ["global_batch"], metric.name).replicated()
    batches = cells.points["global_batch"].to_numpy(dtype=float)
    lost = f"{100 * margin:g} points below" if metric.unit == "%" else f"{margin:.3g} worse than"
    method = (
        f"isotonic in log batch, margin {lost} batch {batches[0]:,.0f}; "
        "95 % percentile bootstrap over seeds"
    )
    weights = cells.counts.astype(float)
    value = _crossings(batches, metric.sign * cells.means[None, :], weights, margin)[0][0]
    lost = _first_lost(runs, batches[-1])
    value, drawn = min(value, lost), None
    if cells.num_seeds > 1:
        means = cells.resampled_means(
            rng, draws, 3 * (cells.num_seeds - 1)
        )  # reference, before, after
        straight, cubic = _crossings(batches, metric.sign * means, weights, margin)
        if np.isfinite(lost):
            straight = np.minimum(straight, batches[-1])
        drawn = np.concatenate([straight[::2], np.minimum(cubic[1::2], lost)])
    held = f"{metric.word} holds up to batch {batches[-1]:,.0f}"
    holds = "" if value < lost else f"{held}, every run diverged at {lost:,.0f}"
    single = "one seed: no interval" if drawn is None else ""
    notes = (holds if np.isfinite(value) else held, left_out, single, diverged_in_words(runs))
    return Estimate.of(value, drawn, cells.num_seeds, method, *notes)


def _first_lost(runs: pd.DataFrame, last: float) -> float:
    """The first batch beyond the last at which every run that ended diverged; inf if none."""
    beyond = runs[runs["global_batch"] > last].groupby("global_batch")["outcome"]
    outcomes = {float(str(batch)): set(found) for batch, found in beyond}
    lost = (b for b, found in outcomes.items() if "diverged" in found and "finished" not in found)
    return min(lost, default=np.inf)


def _crossings(batches: Array, means: Array, weights: Array, margin: float) -> tuple[Array, Array]:
    """Where each row falls below its first value by the margin: by straight lines, by a cubic."""
    if len(batches) < 2:
        return np.full(len(means), np.inf), np.full(len(means), np.inf)
    fall = [isotonic_regression(row, weights=weights, increasing=False).x for row in means]
    x, falls = np.log(batches), np.stack(fall, axis=1)
    fine = np.unique(np.concatenate([np.linspace(x[0], x[-1], _FINE), x]))
    level = means[:, 0] - margin
    curves = (make_interp_spline(x, falls, k=1)(fine), PchipInterpolator(x, falls)(fine))
    straight, cubic = (np.exp(_first_below(fine, curve, level)) for curve in curves)
    return straight, cubic


def _first_below(places: Array, curves: Array, level: Array) -> Array:
    """Where each falling curve, shape (places, curves), comes below its level; inf if nowhere."""
    below = curves < level
    after = np.maximum(below.argmax(axis=0), 1)
    column = np.arange(len(level))
    high, low = curves[after - 1, column], curves[after, column]
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.clip((high - level) / (high - low), 0, 1)
    found = places[after - 1] + share * (places[after] - places[after - 1])
    return np.where(below.any(axis=0), found, np.inf)
