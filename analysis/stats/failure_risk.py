"""How likely runs diverge, by rate, batch and other settings."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats
from scipy.special import expit

from analysis.stats.replicates import LEVEL, Array, Estimate

#: Runs of the rarer outcome for each coefficient (Peduzzi et al. 1996, J. Clin. Epidemiol. 49).
_EVENTS = 5
_Z = float(stats.norm.ppf(0.5 + LEVEL / 2))


@dataclass(frozen=True, slots=True)
class Risk:
    """A logistic regression of divergence.

    Attributes:
        odds: a row per setting: `setting`, `log_odds` (per unit; of its logarithm for all but the
            warmup and settings that are 0 somewhere), `low`, `high`.
        rate_power: of the batch, with which the rate of equal risk grows.
    """

    odds: pd.DataFrame
    rate_power: Estimate


def fit_risk(runs: pd.DataFrame, settings: Sequence[str]) -> Risk:
    """Logistic regression on the settings, by Firth's likelihood, which is always finite.

    The power is ``-odds(batch) / odds(rate)``, with Fieller's interval.

    Uses `outcome`, the settings, of which two are `peak_lr` and `global_batch`.

    Raises:
        ValueError: if too few runs diverged, or finished, for this many settings.

    Source:
        Firth 1993, Biometrika 80, 27-38; Fieller 1954, J. R. Stat. Soc. B 16, 175-185.
    """
    if not {"peak_lr", "global_batch"} <= {*settings}:
        msg = "several batches and rates are needed."
        raise ValueError(msg)
    is_lost = (runs["outcome"] == "diverged").to_numpy()
    if (rarer := min(is_lost.sum(), (~is_lost).sum())) < _EVENTS * (len(settings) + 1):
        msg = (
            f"{_EVENTS * (len(settings) + 1)} runs or more must have diverged, and as many "
            f"finished, for {len(settings)} settings; got {rarer}."
        )
        raise ValueError(msg)
    columns = [_scale(runs[c].to_numpy(float), c) for c in settings]
    found, covariance = _fit_firth(np.stack(columns, axis=1), is_lost)
    half = _Z * np.sqrt(np.diag(covariance))
    odds = pd.DataFrame(
        {"setting": settings, "log_odds": found, "low": found - half, "high": found + half}
    )
    rate, batch = list(settings).index("peak_lr"), list(settings).index("global_batch")
    ends = _fieller(-found[batch], found[rate], covariance[batch, batch],
                    -covariance[batch, rate], covariance[rate, rate])  # fmt: skip
    method = "logistic regression (Firth); Fieller's 95 % interval"
    return Risk(odds, Estimate(float(-found[batch] / found[rate]), *ends, 1, method))


def _scale(values: Array, column: str) -> Array:
    return np.log(values) if column != "warmup_epochs" and (values > 0).all() else values


def _fit_firth(x: Array, is_lost: NDArray[np.bool_]) -> tuple[Array, Array]:
    """Coefficients of the columns, and their covariance; a constant is fitted besides."""
    spread = x.std(axis=0)
    design = np.column_stack([np.ones(len(x)), (x - x.mean(axis=0)) / spread])
    found = np.zeros(design.shape[1])
    inverse = np.eye(len(found))
    for _ in range(100):
        chance = expit(design @ found)
        weighted = design * (chance * (1 - chance))[:, None]
        inverse = np.linalg.pinv(weighted.T @ design)
        leverage = np.einsum("ij,jk,ik->i", weighted, inverse, design)
        step = inverse @ design.T @ (is_lost - chance + leverage * (0.5 - chance))
        found += step / max(1.0, float(np.abs(step).max()))
        if np.abs(step).max() < 1e-8:
            break
    return found[1:] / spread, inverse[1:, 1:] / np.outer(spread, spread)


def _fieller(top: float, under: float, var: float, both: float, of: float) -> tuple[float, float]:
    """Ends of the interval of ``top / under``; unbounded if `under` may be 0."""
    a, b, c = under**2 - _Z**2 * of, top * under - _Z**2 * both, top**2 - _Z**2 * var
    if a <= 0:
        return -np.inf, np.inf
    half = np.sqrt(max(b**2 - a * c, 0.0))
    return float((b - half) / a), float((b + half) / a)
