"""95 % intervals over seeds that figures show: of means, and of weighted sums of means."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

Array = NDArray[np.float64]

_UPPER = 0.975


def t_half_width(sd: Any, count: Any) -> Array:
    """Half the t interval of a mean, ``t(n - 1) * sd / sqrt(n)``; nan of one value."""
    n = np.asarray(count, dtype=float)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(n > 1, stdtrit(n - 1, _UPPER) * np.asarray(sd, float) / np.sqrt(n), np.nan)


def sum_half_width(weights: Array, sd: Array, count: Array) -> float:
    """Half the t interval of a weighted sum of independent means; nan if one has one value.

    Source:
        Welch 1947, The generalization of Student's problem; degrees of freedom by Satterthwaite.
    """
    parts = (weights * sd) ** 2 / count
    if (count < 2).any():
        return np.nan
    if not parts.sum():
        return 0.0
    freedom = parts.sum() ** 2 / (parts**2 / (count - 1)).sum()
    return float(stdtrit(freedom, _UPPER) * np.sqrt(parts.sum()))
