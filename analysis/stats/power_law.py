"""Exponents of published points: one value per batch, no replicates."""

from typing import Any

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
    fit: Any = stats.linregress(np.log(x), np.log(y))
    freedom = len(x) - 2
    half = float(stats.t.ppf(0.5 + LEVEL / 2, freedom) * fit.stderr)
    method = f"least squares in logarithms; 95 % t interval, {freedom} degrees of freedom"
    return Estimate(float(fit.slope), fit.slope - half, fit.slope + half, 1, method)
