"""The batch at which the metric breaks."""

import numpy as np
import pandas as pd
from scipy.optimize import isotonic_regression

from analysis.stats.replicates import DRAWS, Array, Estimate, Replicates
from analysis.stats.shares import diverged_in_words
from analysis.tables.metric import ACCURACY, Metric


def breaking_batch(
    runs: pd.DataFrame,
    rng: np.random.Generator,
    margin: float = 0.005,
    draws: int = DRAWS,
    metric: Metric = ACCURACY,
) -> Estimate:
    """The smallest batch whose metric is worse than the smallest batch's by more than a margin.

    The metric is made to worsen with the batch (isotonic regression weighted by replicates) and
    interpolated in log batch; the reference is the mean at the smallest batch.

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
    value = _crossing(batches, metric.sign * cells.means, weights, margin)
    drawn = None
    if cells.num_seeds > 1:
        means = cells.resampled_means(
            rng, draws, 3 * (cells.num_seeds - 1)
        )  # reference, before, after
        drawn = np.array([_crossing(batches, metric.sign * m, weights, margin) for m in means])
    holds = "" if np.isfinite(value) else f"{metric.word} holds up to batch {batches[-1]:,.0f}"
    single = "one seed: no interval" if drawn is None else ""
    notes = (holds, left_out, single, diverged_in_words(runs))
    return Estimate.of(value, drawn, cells.num_seeds, method, *notes)


def _crossing(batches: Array, means: Array, weights: Array, margin: float) -> float:
    level = means[0] - margin
    falling = isotonic_regression(means, weights=weights, increasing=False).x
    below = np.flatnonzero(falling < level)
    if not len(below):
        return np.inf
    i = int(below[0])
    if i == 0:
        return float(batches[0])
    share = (falling[i - 1] - level) / (falling[i - 1] - falling[i])
    ends = np.log(batches[i - 1 : i + 1])
    return float(np.exp(ends[0] + share * (ends[1] - ends[0])))
