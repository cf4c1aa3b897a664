"""Whether two arms differ, are the same, or cannot be distinguished with these seeds."""

from dataclasses import dataclass

import numpy as np

from analysis.stats.contrasts import Arms, Contrasts, Evidence, rank_test, weigh
from analysis.stats.power import assured_distance, assured_spread, seeds_to_see
from analysis.stats.replicates import Array, Estimate, fixed_rng
from analysis.stats.shares import share_in_words


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two arms compared.

    Attributes:
        difference: mean of the first minus mean of the second, of runs that finished, with its
            95 % interval.
        verdict: equivalent, different or inconclusive.
        p_different: two-sided p value of the null of no difference.
        p_equivalent: p value of the null that the difference is as large as the margin, or larger.
        seeds_needed: replicates per arm that would decide, at 80 % power; 0 if decided, -1 if
            unknown.
    """

    difference: Estimate
    verdict: str
    p_different: float
    p_equivalent: float
    seeds_needed: int


def compare(
    first: Array,
    second: Array,
    margin: float = 0.003,
    *,
    level: float = 0.05,
    num_validation: int | None = None,
    num_diverged: tuple[int, int] = (0, 0),
    worst: float = -np.inf,
) -> Comparison:
    """Two one-sided tests of equivalence, and Welch's of a difference; by ranks if a run diverged.

    Equivalent: the 90 % interval of the difference lies inside the margin. Different: the 95 %
    interval excludes zero, and the arms are not equivalent. Inconclusive: neither. That is for a
    level of 5 %; one pair among several needs a smaller one.

    Args:
        first: values of the runs of one arm that finished.
        second: of the other.
        margin: differences smaller than this do not matter, in the unit of the values.
        level: of either test.
        num_validation: examples of the validation set, whose binomial error is given to an arm that
            measured the same at every seed; None if the values are not shares of it.
        num_diverged: runs of the two arms that diverged.
        worst: their value for ranking, inf or -inf.

    Raises:
        ValueError: if an arm has one replicate.

    Source:
        Schuirmann 1987 (two one-sided tests); Welch 1947 (unequal variances).
    """
    counts = [len(v) + lost for v, lost in zip((first, second), num_diverged, strict=True)]
    if min(counts) < 2:
        msg = (
            "each arm must have two or more seeds to be compared; "
            f"got {counts[0]} and {counts[1]}. Run more seeds."
        )
        raise ValueError(msg)
    arms = Arms.of([first, second])
    if num_validation:
        arms = arms.floored(num_validation)
    ranked = [
        np.append(first, [worst] * num_diverged[0]),
        np.append(second, [worst] * num_diverged[1]),
    ]
    of_ranks = ranked if any(num_diverged) else None
    differ = _weighed(Contrasts.pairs((0, 1)), arms, of_ranks)
    within = _weighed(Contrasts.pairs((0, 1), lower=-margin, upper=margin), arms, of_ranks)
    p_different = 2 * float(min(differ.p_for, differ.p_against))
    p_equivalent = float(within.p_for)
    verdict = "different" if p_different < level else "inconclusive"
    verdict = "equivalent" if p_equivalent < level else verdict
    method = f"Welch t, 95 %; equivalence margin {margin:g}"
    lost = [share_in_words(k, n) for k, n in zip(num_diverged, counts, strict=True)]
    note = f"diverged: {' and '.join(lost)}; judged by rank" if of_ranks else ""
    no_spread = np.isnan(p_different) and not of_ranks
    if no_spread:
        note = "every seed measured the same: nothing to test by"
    ends = (np.nan, np.nan) if no_spread else (float(differ.low), float(differ.high))
    estimate = Estimate(float(differ.value), *ends, min(counts), method, note)
    needed = 0
    if verdict == "inconclusive":
        needed = -1 if of_ranks or np.isnan(p_different) else _seeds_needed(arms, margin, level)
    return Comparison(estimate, verdict, p_different, p_equivalent, needed)


def _weighed(contrasts: Contrasts, arms: Arms, ranked: list[Array] | None) -> Evidence:
    if ranked is None:
        return weigh(contrasts, arms)
    return weigh(contrasts, arms, [rank_test(contrasts, 0, ranked, fixed_rng())])


def _seeds_needed(arms: Arms, margin: float, level: float) -> int:
    """Seeds per arm to call a difference real or negligible, down to half the margin."""
    error = float(np.sqrt((arms.variances / arms.counts).sum()))
    freedom = float((arms.counts - 1).sum())
    distance = assured_distance(abs(float(arms.means[0] - arms.means[1])), error, freedom)
    spread = assured_spread(arms.variances, arms.counts)
    needed = seeds_to_see(max(distance, margin / 2), spread, level=level)
    return max(needed, int(arms.counts.min()) + 1)
