"""Expected intervals after runs are added, and how many seeds would decide."""

from math import comb

import numpy as np
from numpy.typing import NDArray

from analysis.papers.claim import shares_outside
from analysis.stats.contrasts import ASSURANCE, ONE_SIDED, Arms, Contrasts, weigh_contrasts
from analysis.stats.optimum import Optima, exponent_draws
from analysis.stats.replicates import percentile_interval, student_factor

Interval = tuple[float, float]

#: Neither end is known.
UNKNOWN: Interval = (np.nan, np.nan)


def interval_width(interval: Interval) -> float:
    """From end to end; nan if an end is not known or infinite."""
    low, high = interval
    return high - low if np.isfinite(low) and np.isfinite(high) else np.nan


def expected_interval(contrasts: Contrasts, arms: Arms, counts: NDArray[np.int64]) -> Interval:
    """The interval of the deciding contrast with these numbers of seeds per arm.

    Computed as for the verdict (Welch's t with Satterthwaite's degrees of freedom) from the new
    counts, if means and variances stay as observed. An arm with fewer than two seeds is given the
    pooled variance and, for its mean, the mean of the others: then only the width counts.

    Returns:
        The ends; nan if no arm has two seeds.
    """
    known = arms.counts > 1
    if not known.any():
        return UNKNOWN
    pooled = np.average(arms.variances[known], weights=arms.counts[known] - 1)
    variances = np.where(known, arms.variances, pooled)
    seen = arms.counts > 0
    means = np.where(seen, arms.means, np.nanmean(np.where(seen, arms.means, np.nan)))
    found = weigh_contrasts(contrasts, Arms(means, variances, counts))
    return float(found.low), float(found.high)


def fewest_seeds_by_rank(num_arms: int, level: float) -> int:
    """Seeds per arm with which ranks can decide at all: if those of an arm are above all others."""
    return next(n for n in range(2, 1000) if 1 / comb(num_arms * n, n) <= level)


def seeds_for_exponent(optima: Optima, num_claims: int, most: int) -> int:
    """Seeds per point that show or refute an exponent between 0 and 1; -1 if none do.

    The bootstrap draws are narrowed as more seeds would narrow them, around that end of their
    central 60 % which is nearer to the bound: the estimate is not trusted to stay.
    """
    value, draws, _ = exponent_draws(optima)
    if draws is None or np.isnan(value):
        return -1
    ends = np.nanquantile(draws, [1 - ASSURANCE, ASSURANCE])
    bound = min((0.0, 1.0), key=lambda b: abs(value - b))
    assumed = float(min(ends, key=lambda end: abs(end - bound)))
    if (assumed - bound) * (value - bound) <= 0:
        return -1
    for n in range(optima.num_seeds + 1, most + 1):
        drawn = assumed + (draws - value) * _shrink_factor(optima, n)
        if min(shares_outside(drawn, 0.0, 1.0)) <= ONE_SIDED / num_claims:
            return n
    return -1


def expected_exponent(optima: Optima, seeds: int) -> Interval:
    """The exponent's expected interval with this number of seeds per point."""
    value, draws, _ = exponent_draws(optima)
    if draws is None or np.isnan(value):
        return UNKNOWN
    return percentile_interval(value + (draws - value) * _shrink_factor(optima, seeds))


def _shrink_factor(optima: Optima, seeds: int) -> float:
    """How much narrower bootstrap draws of an estimate are with more seeds."""
    points = 3 * len(optima.batches)  # at least

    def spread(n: int) -> float:
        return student_factor(points * (n - 1)) / np.sqrt(n)

    return float(spread(seeds) / spread(optima.num_seeds))
