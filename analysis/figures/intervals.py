"""95 % intervals over seeds that figures show: of means, and of weighted sums of means."""

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import stdtrit

from analysis.tables.files import FRACTIONS

Array = NDArray[np.float64]

_UPPER = 0.975

#: Values that differ by less than this fraction of their size are equal.
_ROUNDING = 1e-9


def t_half_width(sd: Any, count: Any) -> Array:
    """Half the t interval of a mean, ``t(n - 1) * sd / sqrt(n)``; nan for one value.

    It is also nan for values that are all equal, such as saturated accuracies: they do not show how
    far off another one would be.
    """
    n, spread = np.asarray(count, dtype=float), np.asarray(sd, dtype=float)
    with np.errstate(invalid="ignore", divide="ignore"):
        half = stdtrit(n - 1, _UPPER) * spread / np.sqrt(n)
    return np.where((n > 1) & (spread > 0), half, np.nan)


def with_intervals(frame: pd.DataFrame, count: Any, measure: str) -> pd.DataFrame:
    """Means with `low` and `high`, 95 % t intervals; for accuracies clipped to 0 to 1.

    Args:
        frame: with `mean` and `sd`; an sd that is rounding alone becomes 0.
        count: values of each mean.
        measure: name of what is averaged.
    """
    spread = frame["sd"].mask(frame["sd"] <= _ROUNDING * frame["mean"].abs(), 0.0)
    half = t_half_width(spread, count)
    low, high = frame["mean"] - half, frame["mean"] + half
    if measure in FRACTIONS:
        low, high = low.clip(lower=0.0), high.clip(upper=1.0)
    return frame.assign(sd=spread, low=low, high=high)


def sum_half_width(weights: Array, sd: Array, count: Array) -> float:
    """Half the t interval of a weighted sum of independent means.

    It is nan if any mean has only one value, or if no mean's values differ.

    Source:
        Welch 1947, The generalization of Student's problem; degrees of freedom by Satterthwaite.
    """
    parts = (weights * sd) ** 2 / count
    if (count < 2).any() or not parts.sum():
        return np.nan
    freedom = parts.sum() ** 2 / (parts**2 / (count - 1)).sum()
    return float(stdtrit(freedom, _UPPER) * np.sqrt(parts.sum()))
