"""How many seeds an effect needs: the power of a t test, with an assurance of it."""

from bisect import bisect_left

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from analysis.stats.replicates import Array

#: Probability that the spread, and the difference, are no worse than a proposal assumes.
ASSURANCE = 0.8

#: The most replicates per arm that are proposed.
MOST_SEEDS = 1000


def seeds_to_see(
    effect: float,
    spread: float,
    *,
    power: float = 0.8,
    level: float = 0.05,
    weights: tuple[float, ...] = (1.0, -1.0),
) -> int:
    """Replicates per arm with which a two-sided t test detects an effect.

    Args:
        effect: true value of the weighted sum of the arms' means, by default their difference.
        spread: standard deviation over seeds, in the same unit.
        power: probability of detecting it.
        level: of the test.
        weights: of the arms.

    Returns:
        The smallest number, 2 to `MOST_SEEDS`.
    """
    if spread == 0 or effect == 0:
        return MOST_SEEDS if effect == 0 else 2

    squares = sum(weight**2 for weight in weights)

    def seen(count: int) -> float:
        freedom = len(weights) * (count - 1)
        shift = abs(effect) / (spread * np.sqrt(squares / count))
        return float(stats.nct.sf(stats.t.ppf(1 - level / 2, freedom), freedom, shift))

    counts = range(2, MOST_SEEDS + 1)
    return counts[min(bisect_left(counts, power, key=seen), len(counts) - 1)]


def assured_spread(variances: Array, counts: NDArray[np.int64]) -> float:
    """The upper 80 % limit of the standard deviation over seeds, pooled over arms."""
    freedom = float((counts - 1).sum())
    pooled = float(((counts - 1) * variances).sum()) / freedom
    return float(np.sqrt(pooled * freedom / stats.chi2.ppf(1 - ASSURANCE, freedom)))


def assured_distance(distance: float, error: float, freedom: float) -> float:
    """The lower 80 % limit of a distance."""
    return float(distance - stats.t.ppf(ASSURANCE, freedom) * error)
