"""Exponents of published points: one value per batch, no replicates."""

import numpy as np
from scipy import stats

from analysis.stats.replicates import LEVEL, Array, Estimate


def power_exponent(x: Array, y: Array) -> Estimate:
    """The exponent of a power law through points.

    ``log(y) = a + b * log(x)`` by ordinary least squares, with Student's interval of b.

    Args:
        x: positive, three or more.
        y: positive, one per x.

    Returns:
        The exponent b.
    """
    u, v = np.log(x), np.log(y)
    deviation = u - u.mean()
    slope = float(deviation @ v / (deviation @ deviation))
    residual = v - v.mean() - slope * deviation
    freedom = len(u) - 2
    error = np.sqrt(residual @ residual / freedom / (deviation @ deviation))
    half = float(stats.t.ppf(0.5 + LEVEL / 2, freedom) * error)
    method = f"least squares in logarithms; 95 % t interval, {freedom} degrees of freedom"
    return Estimate(slope, slope - half, slope + half, 1, method)
