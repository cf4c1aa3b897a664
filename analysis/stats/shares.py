"""Shares: of runs that diverged, and accuracies, which are shares of a validation set."""

import numpy as np
import pandas as pd
from scipy import stats

from analysis.stats.replicates import LEVEL, Array

#: Validation sets that are smaller or larger are not recognised: accuracies of 0, 1 or a half
#: would be those of two examples [examples].
_FEWEST_EXAMPLES, _MOST_EXAMPLES = 10, 200_000


def interval_of_share(count: int, total: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share.

    Source:
        Wilson 1927, Journal of the American Statistical Association 22, 209-212.
    """
    interval = stats.binomtest(count, total).proportion_ci(LEVEL, method="wilson")
    return float(interval.low), float(interval.high)


def share_in_words(count: int, total: int) -> str:
    """A share of runs with its interval, such as "1 of 5 (4 to 62 %)"."""
    low, high = interval_of_share(count, total)
    return f"{count} of {total} ({100 * low:.0f} to {100 * high:.0f} %)"


def diverged_in_words(runs: pd.DataFrame) -> str:
    """How many of the runs that ended diverged, which an estimate leaves out; empty if none."""
    lost, finished = ((runs["outcome"] == name).sum() for name in ("diverged", "finished"))
    if not lost:
        return ""
    return (
        f"runs that diverged are not in the fit: {share_in_words(int(lost), int(lost + finished))}"
    )


def validation_size(accuracies: Array) -> int | None:
    """The smallest validation set with a whole count for every accuracy; None if unknown.

    A divisor of the true number if all counts share one, which makes the binomial error larger.
    """
    sizes = np.arange(1, _MOST_EXAMPLES + 1)
    for share in np.unique(accuracies[~np.isnan(accuracies)]):
        counts = sizes * share
        sizes = sizes[np.abs(counts - np.round(counts)) < 1e-9]
    return int(sizes[0]) if len(sizes) and sizes[0] >= _FEWEST_EXAMPLES else None
