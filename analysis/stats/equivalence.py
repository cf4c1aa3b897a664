"""Whether two arms differ, are the same, or cannot be told apart with these seeds."""

import warnings
from bisect import bisect_left
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from scipy import stats

from analysis.stats.replicates import LEVEL, Array, Estimate

#: The most replicates an arm that are proposed.
MOST_SEEDS = 1000


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two arms compared.

    Attributes:
        difference: mean of the first minus mean of the second, with its 95 % interval.
        verdict: equivalent, different or inconclusive.
        p_different: two-sided Welch test of no difference.
        p_equivalent: the larger of the two one-sided tests; small means equivalent.
        seeds_needed: replicates an arm that would decide, at 80 % power; 0 if decided.
    """

    difference: Estimate
    verdict: str
    p_different: float
    p_equivalent: float
    seeds_needed: int


def compare(first: Array, second: Array, margin: float = 0.003) -> Comparison:
    """Two one-sided tests beside Welch's test.

    Equivalent: the 90 % interval of the difference lies inside the margin. Different: the 95 %
    interval excludes zero, and the arms are not equivalent. Inconclusive: neither.

    Args:
        first: replicates of one arm, two or more.
        second: replicates of the other, two or more.
        margin: differences smaller than this do not matter, in the unit of the values.

    Raises:
        ValueError: if an arm has one replicate.

    Source:
        Schuirmann 1987 (two one-sided tests); Welch 1947 (unequal variances).
    """
    if min(len(first), len(second)) < 2:
        msg = (
            "each arm must have two or more seeds to be compared; "
            f"got {len(first)} and {len(second)}. Run more seeds."
        )
        raise ValueError(msg)
    difference = float(first.mean() - second.mean())
    p_different, p_equivalent, low, high = _welch(first, second, margin)
    verdict = "equivalent" if p_equivalent < 0.05 else "inconclusive"
    if verdict == "inconclusive" and p_different < 0.05:
        verdict = "different"
    needed = 0 if verdict != "inconclusive" else _seeds_needed(first, second, difference, margin)
    num_seeds = min(len(first), len(second))
    method = f"Welch t, 95 %; equivalence margin {margin:g}"
    estimate = Estimate(difference, low, high, num_seeds, method)
    return Comparison(estimate, verdict, p_different, p_equivalent, needed)


def _welch(first: Array, second: Array, margin: float) -> tuple[float, float, float, float]:
    """P values of no difference and of one beyond the margin, and the interval."""
    if first.var() + second.var() == 0:  # without spread there is no test
        return np.nan, np.nan, np.nan, np.nan
    test: Any = partial(stats.ttest_ind, equal_var=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of arms that hardly spread
        both = test(first, second)
        above = test(first + margin, second, alternative="greater").pvalue
        below = test(first - margin, second, alternative="less").pvalue
        interval = both.confidence_interval(LEVEL)
    return float(both.pvalue), float(max(above, below)), float(interval.low), float(interval.high)


def seeds_to_see(effect: float, spread: float, *, power: float = 0.8, level: float = 0.05) -> int:
    """Replicates an arm so that a two-sided t test sees an effect.

    Args:
        effect: true difference of the means.
        spread: standard deviation over seeds, in the same unit.
        power: probability of seeing it.
        level: of the test.

    Returns:
        The smallest number, 2 to `MOST_SEEDS`.
    """
    if spread == 0 or effect == 0:
        return MOST_SEEDS if effect == 0 else 2

    def seen(count: int) -> float:
        freedom = 2 * (count - 1)
        shift = abs(effect) / (spread * np.sqrt(2 / count))
        return float(stats.nct.sf(stats.t.ppf(1 - level / 2, freedom), freedom, shift))

    counts = range(2, MOST_SEEDS + 1)
    return counts[min(bisect_left(counts, power, key=seen), len(counts) - 1)]


def _seeds_needed(first: Array, second: Array, difference: float, margin: float) -> int:
    """Whichever is nearer: to call the observed difference real, or to call it negligible."""
    spread = float(np.sqrt((first.var(ddof=1) + second.var(ddof=1)) / 2))
    distance = max(abs(difference), margin - abs(difference))
    return max(seeds_to_see(distance, spread), min(len(first), len(second)) + 1)
