"""Powers of the batch through points of which each is off by more than its seeds tell."""

import numpy as np
import pandas as pd
from scipy import stats

from analysis.stats.critical_batch import shared_noise
from analysis.stats.replicates import LEVEL, Array, Estimate, Replicates


def batch_power(batches: Array, values: Array, num_seeds: int = 1) -> Estimate:
    """The exponent b of ``log(value) = a + b * log(batch)``, by least squares over batches.

    The interval is Student's, from the scatter of the batches about the line: how each was tuned is
    in it, which the seeds of a batch share.
    """
    x, y = np.log(batches) - np.log(batches).mean(), np.log(values)
    slope, free = round(float(x @ y / (x @ x)), 9) + 0.0, len(x) - 2
    method = "slope in logarithms over batches; 95 % t interval from their scatter"
    if free < 1:
        return Estimate(slope, np.nan, np.nan, num_seeds, method, "two batches: no interval")
    rest = y - y.mean() - slope * x
    half = stats.t.ppf(0.5 + LEVEL / 2, free) * np.sqrt(rest @ rest / free / (x @ x))
    half = round(float(half), 9)  # of a power that holds exactly only rounding is left
    return Estimate(slope, slope - half, slope + half, num_seeds, method)


def proportional_up_to(batches: Array, values: Array) -> float:
    """The largest batch up to which the values grow in proportion, within 2 %."""
    off = np.abs(values / values[0] * batches[0] / batches - 1)
    beyond = np.flatnonzero(off > 0.02)
    return float(batches[beyond[0] - 1] if len(beyond) else batches[-1])


def costs_between(cells: Replicates) -> pd.DataFrame:
    """What each step to the next larger batch costs, per doubling of the batch.

    ``(E2 / E1)**(1 / log2(B2 / B1)) - 1``, with Welch's 95 % interval of the logarithm. A
    batch with one seed has the noise that `shared_noise` tells.

    Returns:
        a row per pair of neighbours: `smaller`, `larger`, `cost`, `low`, `high` [fractions].
    """
    batches = cells.points["global_batch"].to_numpy()
    shared, free = shared_noise(cells)
    is_one = cells.counts < 2
    errors = np.where(is_one, shared, cells.mean_variances / cells.means**2)
    own = np.where(is_one, free, np.where(cells.is_coarse, np.inf, cells.counts - 1))
    variance = errors[1:] + errors[:-1]
    with np.errstate(divide="ignore", invalid="ignore"):  # two coarse points have no freedom
        free = variance**2 / (errors[1:] ** 2 / own[1:] + errors[:-1] ** 2 / own[:-1])
    half = stats.t.ppf(0.5 + LEVEL / 2, np.fmin(free, 1e9)) * np.sqrt(variance)
    logs, doublings = np.diff(np.log(cells.means)), np.diff(np.log2(batches))
    ends = {"cost": logs, "low": logs - half, "high": logs + half}
    found = {name: np.expm1(value / doublings) for name, value in ends.items()}
    return pd.DataFrame({"smaller": batches[:-1], "larger": batches[1:], **found})
