"""How likely runs diverge, by rate, batch and other settings."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats
from scipy.special import expit

from analysis.stats.replicates import LEVEL, Array, Estimate

#: Runs of the rarer outcome for each coefficient (Peduzzi et al. 1996, J. Clin. Epidemiol. 49).
_EVENTS = 5
_Z = float(stats.norm.ppf(0.5 + LEVEL / 2))


def fit_risk(runs: pd.DataFrame, settings: Sequence[str]) -> tuple[pd.DataFrame, Estimate]:
    """Logistic regression of divergence on settings, by Firth's likelihood: always finite.

    Uses `outcome` and the settings, of which two are `peak_lr` and `global_batch`.

    Returns:
        a row per setting: `setting`, `log_odds` (of its logarithm; per unit of the warmup, and of
        settings that are 0 somewhere), `low`, `high`; and ``-odds(batch) / odds(rate)``, the power
        of the batch with which the rate of equal risk grows, with Fieller's interval.

    Raises:
        ValueError: if too few runs diverged, or finished, for this many settings.

    Source:
        Firth 1993, Biometrika 80, 27-38; Fieller 1954, J. R. Stat. Soc. B 16, 175-185.
    """
    is_lost = (runs["outcome"] == "diverged").to_numpy()
    rarer, needed = min(is_lost.sum(), (~is_lost).sum()), _EVENTS * (len(settings) + 1)
    if not {"peak_lr", "global_batch"} <= {*settings} or rarer < needed:
        msg = (
            f"several batches and rates are needed, and {needed} runs or more that diverged, and "
            f"as many that finished, for {len(settings)} settings; got {rarer}."
        )
        raise ValueError(msg)
    columns = [_scale(runs[c].to_numpy(float), c) for c in settings]
    found, covariance = _fit_firth(np.stack(columns, axis=1), is_lost)
    half = _Z * np.sqrt(np.diag(covariance))
    odds = pd.DataFrame(
        {"setting": settings, "log_odds": found, "low": found - half, "high": found + half}
    )
    rate, batch = list(settings).index("peak_lr"), list(settings).index("global_batch")
    top, under = -float(found[batch]), float(found[rate])
    a, b, c = (
        x * y - _Z**2 * float(v)
        for x, y, v in (
            (under, under, covariance[rate, rate]),
            (top, under, -covariance[batch, rate]),
            (top, top, covariance[batch, batch]),
        )
    )
    root = np.sqrt(max(b**2 - a * c, 0.0))
    low, high = ((b - root) / a, (b + root) / a) if a > 0 else (-np.inf, np.inf)
    method = "logistic regression (Firth); Fieller's 95 % interval"
    return odds, Estimate(top / under, float(low), float(high), 1, method)


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
