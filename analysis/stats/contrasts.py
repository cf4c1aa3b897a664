"""What seeds say about contrasts between arms: Welch's tests, several at once, and their power."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from analysis.stats.replicates import ROUNDING, Array, are_equal, format_share
from analysis.tables.metric import Metric

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

    The effect is a weighted sum of the arms' means, by default their difference; the spread is
    the standard deviation over seeds, in the same unit.

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


#: Level of a one-sided test, and share beyond each end of a 95 % interval.
ONE_SIDED = 0.025

_PERMUTATIONS = 9_999


@dataclass(frozen=True, slots=True)
class Arms:
    """Arms of a study, or of many with equal numbers of seeds.

    Attributes:
        means: over seeds, shape (..., arms).
        variances: over seeds, shape (..., arms); nan for an arm with a single seed.
        counts: seeds of each arm, shape (arms,).
    """

    means: Array
    variances: Array
    counts: NDArray[np.int64]

    @classmethod
    def from_seeds(cls, values: Sequence[Array]) -> "Arms":
        """From the values of each arm's seeds."""
        means = [v.mean() if len(v) else np.nan for v in values]
        variances = [  # 0 if they are equal up to rounding, which the mean adds
            (0.0 if are_equal(v) else float(v.var(ddof=1))) if len(v) > 1 else np.nan
            for v in values
        ]
        return cls(np.array(means), np.array(variances), np.array([len(v) for v in values]))

    def floor_variances(self, num_validation: float) -> "Arms":
        """Give arms whose accuracy is equal at every seed the validation set's binomial variance.

        Source:
            Agresti & Coull 1998, The American Statistician 52, 119-126: two hits and two misses
            are added, so that an accuracy of 0 or 1 has a variance too.
        """
        share = (self.means * num_validation + 2) / (num_validation + 4)
        binomial = share * (1 - share) / (num_validation + 4)
        is_constant = self.variances <= (ROUNDING * self.means) ** 2
        return Arms(self.means, np.where(is_constant, binomial, self.variances), self.counts)


@dataclass(frozen=True, slots=True)
class SeedValues:
    """What the seeds of arms measured.

    Attributes:
        finished: of the runs that finished, of each arm.
        num_diverged: runs that diverged, of each arm.
        worst: value of a diverged run when runs are ranked, inf or -inf.
        num_validation: examples of the validation set, if the values are shares of them.
    """

    finished: Sequence[Array]
    num_diverged: Sequence[int]
    worst: float = -np.inf
    num_validation: int | None = None

    @classmethod
    def from_runs(cls, arms: Sequence[pd.DataFrame], metric: Metric) -> "SeedValues":
        """From the ended runs of each arm; how large the validation set is, is not known."""
        lost = [arm["outcome"] == "diverged" for arm in arms]
        kept = [arm.loc[~gone, metric.name] for arm, gone in zip(arms, lost, strict=True)]
        finished = [values.dropna().to_numpy(dtype=float) for values in kept]
        return cls(finished, [int(gone.sum()) for gone in lost], -metric.sign * np.inf)

    @property
    def counts(self) -> list[int]:
        """Runs of each arm."""
        both = zip(self.finished, self.num_diverged, strict=True)
        return [len(values) + lost for values, lost in both]

    @property
    def shares(self) -> list[str]:
        """The share of each arm that diverged, in words."""
        return [format_share(*of) for of in zip(self.num_diverged, self.counts, strict=True)]

    @property
    def ranked(self) -> list[Array]:
        """The values of each arm, diverged runs with the worst."""
        both = zip(self.finished, self.num_diverged, strict=True)
        return [np.append(values, np.full(lost, self.worst)) for values, lost in both]

    @property
    def arms(self) -> Arms:
        """Of the runs that finished, none known better than the validation set can tell."""
        arms = Arms.from_seeds(self.finished)
        return arms.floor_variances(self.num_validation) if self.num_validation else arms


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrasts:
    """Weighted sums of arms' means, of which all, or any, must lie between two bounds.

    Attributes:
        weights: shape (contrasts, arms).
        constant: added to each sum.
        lower: the bound below.
        upper: the bound above.
        is_any: whether any of them is enough.
    """

    weights: Array
    constant: float = 0.0
    lower: float = 0.0
    upper: float = np.inf
    is_any: bool = False

    @classmethod
    def pairs(
        cls,
        *pairs: tuple[int, int],
        num_arms: int = 2,
        lower: float = 0.0,
        upper: float = np.inf,
        is_any: bool = False,
    ) -> "Contrasts":
        """The first arm of each pair minus the second."""
        each = np.eye(num_arms)
        weights = np.stack([each[first] - each[second] for first, second in pairs])
        return cls(weights=weights, lower=lower, upper=upper, is_any=is_any)

    @property
    def uses(self) -> NDArray[np.bool_]:
        """Which arms each contrast is about, shape (contrasts, arms)."""
        return self.weights != 0


@dataclass(frozen=True, slots=True)
class Evidence:
    """What tests say about contrasts.

    Attributes:
        value: the smallest contrast; the largest if any is enough.
        low: lower end of its 95 % interval.
        high: upper end.
        p_for: one-sided p value of the null that the statement is false; small means that it is
            shown.
        p_against: one-sided p value of the null that it is true; small means that the contrary is
            shown.
    """

    value: Array
    low: Array
    high: Array
    p_for: Array
    p_against: Array


def weigh_contrasts(
    contrasts: Contrasts, arms: Arms, ranked: Sequence[tuple[float, float] | None] = ()
) -> Evidence:
    """Test whether contrasts lie between their bounds.

    Each is tested by Welch's t with Satterthwaite's degrees of freedom. All of k lie inside if
    each test says so (intersection-union), and not all do if any test says so at 1 / k of the
    level (Bonferroni); where any is enough it is the other way round. The ends of the interval of
    the smallest, or largest, follow the same rule.

    `ranked` has for each contrast the two p values that replace Welch's, or None.

    Source:
        Berger 1982, Technometrics 24, 295-300 (intersection-union); Welch 1947.
    """
    value, error, freedom = _estimates(contrasts, arms)
    p_for, p_against = _sides(contrasts, value, error, freedom)
    for i, of_ranks in enumerate(ranked):
        if of_ranks is not None:
            p_for[..., i], p_against[..., i] = of_ranks
    k = len(contrasts.weights)
    alone = stats.t.ppf(1 - ONE_SIDED, freedom) * error
    among = stats.t.ppf(1 - ONE_SIDED / k, freedom) * error
    if contrasts.is_any:
        ends = (value.max(-1), (value - among).max(-1), (value + alone).max(-1))
        return Evidence(*ends, np.minimum(1.0, k * p_for.min(-1)), p_against.max(-1))
    ends = (value.min(-1), (value - alone).min(-1), (value + among).min(-1))
    return Evidence(*ends, p_for.max(-1), np.minimum(1.0, k * p_against.min(-1)))


def _estimates(contrasts: Contrasts, arms: Arms) -> tuple[Array, Array, Array]:
    """Value, standard error and degrees of freedom of each contrast."""

    def summed(terms: Array) -> Array:  # an arm that a contrast does not use may be nan
        return np.where(contrasts.uses, terms, 0.0).sum(axis=-1)

    squares = (arms.variances / np.maximum(arms.counts, 1))[..., None, :] * contrasts.weights**2
    variance = summed(squares)
    with np.errstate(divide="ignore", invalid="ignore"):
        freedom = variance**2 / summed(squares**2 / (arms.counts - 1))
    value = summed(arms.means[..., None, :] * contrasts.weights) + contrasts.constant
    return value, np.sqrt(variance), freedom


def _sides(contrasts: Contrasts, value: Array, error: Array, freedom: Array) -> tuple[Array, Array]:
    with np.errstate(divide="ignore", invalid="ignore"):
        above, below = (value - contrasts.lower) / error, (contrasts.upper - value) / error
    p_for = np.maximum(stats.t.sf(above, freedom), stats.t.sf(below, freedom))
    p_against = np.minimum(stats.t.cdf(above, freedom), stats.t.cdf(below, freedom))
    num_bounds = int(np.isfinite(contrasts.lower)) + int(np.isfinite(contrasts.upper))
    return p_for, np.minimum(1.0, num_bounds * p_against)


def assured_seeds(
    contrasts: Contrasts, arms: Arms, resolution: float, level: float
) -> tuple[int, float]:
    """Seeds per arm that decide with 80 % power, with an assurance of some 80 %.

    The observed effect is not taken at face value: the spread is taken at its upper 80 % limit, and
    the distance of the deciding contrast from its bounds at its lower limit.

    Returns:
        The number, and the distance that it is for.
    """
    value, error, freedom = _estimates(contrasts, arms)
    i = int(value.argmax() if contrasts.is_any else value.argmin())
    uses = contrasts.uses[i]
    spread = assured_spread(arms.variances[uses], arms.counts[uses])
    distance = min(abs(value[i] - contrasts.lower), abs(contrasts.upper - value[i]))
    distance = max(assured_distance(distance, error[i], freedom[i]), resolution)
    weights = tuple(contrasts.weights[i][uses])
    return seeds_to_see(distance, spread, level=2 * level, weights=weights), distance


def rank_test(
    contrasts: Contrasts, i: int, values: Sequence[Array], rng: np.random.Generator
) -> tuple[float, float]:
    """The two p values of a contrast from ranks, for values that may be infinite.

    The contrast of mean ranks is compared with its values over permutations of the seeds among the
    arms: for two arms this is Wilcoxon's rank sum, for a slope a trend test. For a bound other than
    0 the first arm's values are shifted by it.
    """
    arms = [int(arm) for arm in np.flatnonzero(contrasts.uses[i])]
    scores = [np.full(len(values[a]), contrasts.weights[i, a] / len(values[a])) for a in arms]

    def tail(bound: float) -> tuple[float, float]:
        shifted = [values[a] - bound * (contrasts.weights[i, a] > 0) for a in arms]
        ranks = stats.rankdata(np.concatenate(shifted))
        drawn = rng.permuted(np.tile(ranks, (_PERMUTATIONS, 1)), axis=1)
        score = np.concatenate(scores)
        found, chance = ranks @ score, drawn @ score
        above, below = (chance >= found - 1e-9).sum(), (chance <= found + 1e-9).sum()
        return (above + 1) / (_PERMUTATIONS + 1), (below + 1) / (_PERMUTATIONS + 1)

    over, under = tail(contrasts.lower)
    if not np.isfinite(contrasts.upper):
        return over, under
    beyond, within = tail(contrasts.upper)
    return max(over, within), min(1.0, 2 * min(under, beyond))


def correct_by_holm(p: Array) -> Array:
    """P values corrected for multiple testing.

    ``max over j <= i of (m - j + 1) p_(j)`` in rising order, at most 1; the chance of any false
    finding among them is at most the level. Those that are nan were not tested and do not count.

    Source:
        Holm 1979, Scandinavian Journal of Statistics 6, 65-70.
    """
    order = np.argsort(p, axis=-1)
    ordered = np.take_along_axis(p, order, axis=-1)
    num_tests = (~np.isnan(p)).sum(axis=-1, keepdims=True)
    factors = num_tests - np.arange(p.shape[-1])
    adjusted = np.minimum(np.maximum.accumulate(factors * ordered, axis=-1), 1.0)
    corrected = np.empty_like(p)
    np.put_along_axis(corrected, order, adjusted, axis=-1)
    return corrected
