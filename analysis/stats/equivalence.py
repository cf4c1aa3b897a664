"""Whether two arms differ, are the same, or cannot be told apart with these seeds."""

from dataclasses import dataclass

import numpy as np
from scipy import stats

from analysis.stats.replicates import Array, Estimate


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
    error, freedom = _welch(first, second)
    half = float(stats.t.ppf(0.975, freedom)) * error
    p_different = float(2 * stats.t.sf(abs(difference) / error, freedom))
    p_equivalent = float(stats.t.sf((margin - abs(difference)) / error, freedom))
    verdict = "equivalent" if p_equivalent < 0.05 else "inconclusive"
    if verdict == "inconclusive" and p_different < 0.05:
        verdict = "different"
    needed = 0 if verdict != "inconclusive" else _seeds_needed(first, second, difference, margin)
    num_seeds = min(len(first), len(second))
    method = f"Welch t, 95 %; equivalence margin {margin:g}"
    estimate = Estimate(difference, difference - half, difference + half, num_seeds, method)
    return Comparison(estimate, verdict, p_different, p_equivalent, needed)


def _welch(first: Array, second: Array) -> tuple[float, float]:
    parts = [float(arm.var(ddof=1)) / len(arm) for arm in (first, second)]
    total = max(sum(parts), np.finfo(float).tiny)
    squares = [part**2 / (len(arm) - 1) for part, arm in zip(parts, (first, second), strict=True)]
    return float(np.sqrt(total)), total**2 / max(sum(squares), np.finfo(float).tiny)


def seeds_to_see(effect: float, spread: float, *, power: float = 0.8, level: float = 0.05) -> int:
    """Replicates an arm so that a two-sided t test sees an effect.

    Args:
        effect: true difference of the means.
        spread: standard deviation over seeds, in the same unit.
        power: probability of seeing it.
        level: of the test.

    Returns:
        The smallest number, 2 to 1,000.
    """
    if spread == 0 or effect == 0:
        return 1000 if effect == 0 else 2
    for n in range(2, 1001):
        freedom = 2 * (n - 1)
        shift = abs(effect) / (spread * np.sqrt(2 / n))
        bound = float(stats.t.ppf(1 - level / 2, freedom))
        if float(stats.nct.sf(bound, freedom, shift)) >= power:
            return n
    return 1000


def _seeds_needed(first: Array, second: Array, difference: float, margin: float) -> int:
    """Whichever is nearer: to call the observed difference real, or to call it negligible."""
    spread = float(np.sqrt((first.var(ddof=1) + second.var(ddof=1)) / 2))
    distance = max(abs(difference), margin - abs(difference))
    return max(seeds_to_see(distance, spread), min(len(first), len(second)) + 1)
