"""Expected intervals after runs are added, and how many seeds would decide."""

from math import comb

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.papers.claim import shares_outside
from analysis.stats.contrasts import ONE_SIDED, Arms, Contrasts, weigh
from analysis.stats.optimum import Optima, exponent_draws, optima_of
from analysis.stats.power import ASSURANCE
from analysis.stats.replicates import Array, Replicates, percentile_interval, student_factor
from analysis.tables.metric import Metric

Interval = tuple[float, float]

#: Neither end is known.
UNKNOWN: Interval = (np.nan, np.nan)

_FEW_DRAWS = 500


def width(interval: Interval) -> float:
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
    found = weigh(contrasts, Arms(means, variances, counts))
    return float(found.low), float(found.high)


def fewest_by_rank(num_arms: int, level: float) -> int:
    """Seeds per arm with which ranks can decide at all: if one arm's are above all others."""
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
        drawn = assumed + (draws - value) * _shrunk(optima, n)
        if min(shares_outside(drawn, 0.0, 1.0)) <= ONE_SIDED / num_claims:
            return n
    return -1


def expected_exponent(optima: Optima, seeds: int) -> Interval:
    """The exponent's expected interval with this number of seeds per point."""
    value, draws, _ = exponent_draws(optima)
    if draws is None or np.isnan(value):
        return UNKNOWN
    return percentile_interval(value + (draws - value) * _shrunk(optima, seeds))


def _shrunk(optima: Optima, seeds: int) -> float:
    """How much narrower bootstrap draws of an estimate are with more seeds."""
    points = 3 * len(optima.batches)  # at least

    def spread(n: int) -> float:
        return student_factor(points * (n - 1)) / np.sqrt(n)

    return float(spread(seeds) / spread(optima.num_seeds))


def expected_best(
    cells: Replicates, column: str, added: Array, metric: Metric, rng: np.random.Generator
) -> Interval:
    """The interval of the best setting of one batch when the grid is longer.

    Values at the added settings are predicted by the parabola through the existing ones, with their
    pooled spread over seeds.

    Args:
        cells: points of one batch.
        column: the setting.
        added: its new values, run with as many seeds.
        metric: what is measured, and which direction is better.
        rng: of the bootstrap.

    Returns:
        The ends; nan if these runs show no optimum inside the longer grid, or have one seed.
    """
    if cells.num_seeds < 2 or len(cells.values) < 3:
        return UNKNOWN
    old = cells.points[column].to_numpy(dtype=float)
    found = optima_of(cells, column, rng, _FEW_DRAWS, metric)
    best = float(found.best[0])
    if found.is_rejected or not min(old.min(), added.min()) < best < max(old.max(), added.max()):
        return UNKNOWN
    offset = 1.0 if column == "warmup_epochs" else 0.0
    curve = np.polyfit(np.log(old + offset), cells.means, 2)
    freedom = cells.counts - 1
    spread = np.sqrt(np.average([v.var(ddof=1) for v in cells.values], weights=freedom))  # noqa: PD011
    scores = _scores(int(cells.counts.max()))
    new = [np.polyval(curve, np.log(s + offset)) + spread * scores for s in added]
    points = cells.points.iloc[[0] * len(added)].assign(**{column: added})
    both = pd.concat([cells.points, points], ignore_index=True)
    longer = Replicates(both, (*cells.values, *new))  # noqa: PD011  no frame's
    row = optima_of(longer, column, rng, _FEW_DRAWS, metric).table().iloc[0]
    return float(row["low"]), float(row["high"])


def _scores(count: int) -> Array:
    """Values of mean 0 and standard deviation 1."""
    even = np.linspace(-1, 1, count)
    return even / even.std(ddof=1)
