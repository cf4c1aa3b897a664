"""Multiple comparisons with the best: how much worse each mean is than the best of the others."""

import numpy as np
from scipy.special import chdtri, stdtr, stdtrit

from analysis.stats.contrasts import ONE_SIDED
from analysis.stats.replicates import Array

#: Draws of the family's critical values, and the seed of the generator.
_DRAWS, _SEED = 8000, 1984


def compare_with_best(
    means: Array, errors: Array, freedom: Array, own: Array
) -> tuple[Array, Array, Array]:
    """How much lower each mean is than the highest of the others, with 95 % intervals of all.

    Both ends hold together, whatever the means are. That a mean is lower by no more than the upper
    end asks for comparisons with the best only; those of the worst control at 2.5 % are taken
    (Dunnett's). That it is lower by the lower end may rest on any pair: all of them at 5 %
    (Tukey's, both sides). The levels of a pair that come to these are from fixed draws of normal
    means over a common spread; a pair has Satterthwaite's degrees of freedom, at most those of what
    is known of its spread.

    Args:
        means: two or more, larger is better.
        errors: variance of each.
        freedom: degrees of freedom of each variance, which may share in those of the others.
        own: those that are of its replicates alone.

    Returns:
        The loss, negative for the highest, and its interval's lower and upper end.

    Source:
        Hsu 1981, Annals of Statistics 9, 1026-1034; 1984, Annals of Statistics 12, 1136-1144.
    """
    first, second = np.triu_indices(len(means), 1)
    error = np.sqrt(errors[first] + errors[second])
    squares = errors**2 / freedom
    free = error**4 / (squares[first] + squares[second])
    known = np.minimum(freedom[first] + own[second], freedom[second] + own[first])
    free = np.minimum(np.minimum(free, known), own.sum())
    rng = np.random.default_rng(_SEED)
    drawn = np.sqrt(errors) * rng.normal(size=(_DRAWS, len(means)))
    shares = (rng.permutation(_DRAWS)[:, None] + 0.5) / _DRAWS
    kinds, of_pair = np.unique(free.round(6), return_inverse=True)
    spread = np.sqrt(chdtri(kinds, shares) / kinds)[:, of_pair]
    ratio = (drawn[:, first] - drawn[:, second]) / error / spread
    tail, is_first = stdtr(free, -np.abs(ratio)), ratio > 0
    of_all = np.quantile(tail.min(axis=1), 2 * ONE_SIDED)
    of_best = min(
        np.quantile(
            np.where((first == i) & is_first | (second == i) & ~is_first, tail, 1.0).min(axis=1),
            ONE_SIDED,
        )
        for i in range(len(means))
    )
    behind = means[None, :] - means[:, None]
    np.fill_diagonal(behind, -np.inf)
    ends = []
    for sign, level in ((-1, of_all), (1, of_best)):
        half = np.zeros_like(behind)
        half[first, second] = half[second, first] = stdtrit(free, 1 - level) * error
        ends.append((behind + sign * half).max(axis=1))
    return behind.max(axis=1), *ends
