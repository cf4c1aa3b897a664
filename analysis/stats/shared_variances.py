"""Variances of points with few seeds, moderated by what all points show."""

import numpy as np
from scipy.special import polygamma, psi

from analysis.stats.replicates import Array, Replicates

#: Halves of the prior degrees of freedom that are tried; and their trigamma, both falling.
_HALVES = np.geomspace(1e4, 1e-3, 4000)
_TRIGAMMA = polygamma(1, _HALVES)


def moderate_variances(variances: Array, freedom: Array) -> tuple[Array, Array]:
    """Variances of points drawn towards their common size, as far as they are alike.

    ``(d0 s0**2 + d s**2) / (d0 + d)``, where the prior's degrees of freedom d0 are those by which
    the log variances scatter more than d degrees of freedom explain, by their moments. If they do
    not, d0 is infinite and all are the pooled variance. Points without replicates get the prior's;
    variances of 0 do not tell what the others' size is.

    Args:
        variances: of the values at each point; of any size where freedom is 0.
        freedom: degrees of freedom of each, 0 or more; one must be above 0.

    Returns:
        The moderated variances, and the degrees of freedom of each: at most those of all together.

    Source:
        Smyth 2004, Statistical Applications in Genetics and Molecular Biology 3, 3, section 6.
    """
    known = (freedom > 0) & (variances > 0)
    every = freedom.sum()
    pooled = (freedom * np.where(freedom > 0, variances, 0)).sum() / every
    half = freedom[known] / 2
    logs = np.log(variances[known]) - psi(half) + np.log(half)
    excess = logs.var(ddof=1) - polygamma(1, half).mean() if known.sum() > 1 else 0.0
    if excess <= _TRIGAMMA[0]:
        return np.full(len(variances), pooled), np.full(len(variances), every)
    prior = 2 * np.interp(excess, _TRIGAMMA, _HALVES)
    size = np.exp(logs.mean() + psi(prior / 2) - np.log(prior / 2))
    own = np.where(freedom > 0, freedom * variances, 0.0)
    return (prior * size + own) / (prior + freedom), np.minimum(prior + freedom, every)


def share_variances(cells: Replicates, least: Array | float = 0.0) -> tuple[Array, Array, Array]:
    """Variances of the means of points, shared between them.

    Where the same seeds ran everywhere the effect that a seed has on all points is removed. A point
    that happens to scatter less than half of the points do is known no better than those.

    Args:
        cells: two replicates or more at each point.
        least: variance of a value at each point that its replicates may not show.

    Returns:
        The variances, their degrees of freedom, and those of each point's own replicates.
    """
    deviations, free = cells.deviations([np.arange(len(cells.counts))])
    own = (cells.counts - 1) * free / (cells.counts - 1).sum()
    found = np.maximum([(d**2).mean() for d in deviations], least)
    variances, freedom = moderate_variances(found, own)
    return np.maximum(variances, np.median(variances)) / cells.counts, freedom, own


def add_price(
    errors: Array, freedom: Array, own: Array, price: Array
) -> tuple[Array, Array, Array]:
    """What `share_variances` returns, with variances that are known added."""
    with np.errstate(invalid="ignore"):
        more = np.where(errors > 0, (1 + price / errors) ** 2, 1.0)
    return errors + price, freedom * more, own * more
