"""Is the distance from the start ultra-slow (logarithmic), or a power of the step?"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.stats.model_selection import aicc, lowest
from analysis.stats.replicates import DRAWS, NO_SPREAD, Array, Estimate, stretch

#: Steps that the third law, of three parameters and a variance, needs for its AICc.
FEWEST_STEPS = 6

#: A law is rejected if it is farther from the mean curve (root mean square / the curve's rise).
_FARTHEST = 0.025
_LAW_OF = {"power law": "power", "ultra-slow": "logarithm"}
_POWERS = np.linspace(0.02, 1.2, 119)
_NUM_STEPS = 60
#: Distances that differ by less than this fraction of their size are equal.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Diffusion:
    """Laws fitted to the distance from the start.

    Attributes:
        power: exponent p of ``a + c * step**p``.
        table: one row per law: `law`, `num_parameters`, `aicc`, `delta`, `frequency`.
        local_exponent: ``d log distance / d log step`` in the first and last third.
        verdict: ultra-slow, power law, inconclusive, or neither fits.
    """

    power: Estimate
    table: pd.DataFrame
    local_exponent: tuple[float, float]
    verdict: str

    def p_of(self, verdict: str) -> float:
        """One-sided p value of a verdict: the share of draws in which the other law is better."""
        return 1.0 - float(self.table.set_index("law")["frequency"][_LAW_OF[verdict]])


def constant_rate(runs: pd.DataFrame, curves: pd.DataFrame) -> pd.DataFrame:
    """The distance from the start over the longest stretch of epochs at one learning rate.

    The laws are about that phase: where the rate falls, the distance all but stops.

    Uses `run_id`, `seed`, `outcome` of the runs of one point, and `run_id`, `epoch`, `step`,
    `lr`, `distance_from_start` of the curves.

    Returns:
        `seed`, `step`, `distance` of the finished runs, at the steps that all of them have; no
        rows if there are fewer than six such steps.
    """
    finished = runs.loc[runs["outcome"] == "finished", ["run_id", "seed"]]
    rows = curves.merge(finished).dropna(subset=["distance_from_start"])
    rows = rows.sort_values(["run_id", "epoch"], ignore_index=True)
    is_new = rows["run_id"].ne(rows["run_id"].shift()).to_numpy(dtype=bool)
    changes = is_new | ~np.isclose(rows["lr"], rows["lr"].shift(), rtol=1e-9, atol=0)
    rows["stretch"] = changes.cumsum()
    rows["length"] = rows.groupby("stretch")["step"].transform("size")
    longest = rows.groupby("run_id")["length"].transform("max")
    kept = rows[rows["length"] == longest]
    first = kept.groupby("run_id")["stretch"].transform("min")
    kept = kept[kept["stretch"] == first]
    shared = kept.groupby("step")["run_id"].nunique()
    steps = shared[shared == finished["run_id"].nunique()].index
    kept = kept[kept["step"].isin(steps)].rename(columns={"distance_from_start": "distance"})
    found = kept.loc[kept["distance"] > 0, ["seed", "step", "distance"]]
    return found if len(steps) >= FEWEST_STEPS else found.iloc[:0]


def diffusion(series: pd.DataFrame, rng: np.random.Generator, draws: int = DRAWS) -> Diffusion:
    """Fit a logarithm, a power and a shifted power to the distance from the start.

    M1 ``a + b log step``; M2 ``c step**p``; M3 ``a + c step**p``; each by least squares to the mean
    over seeds at log-spaced steps, so that early and late steps count equally. Seeds are resampled
    whole. A power law is concluded when M2 beats M1 in 95 % of the draws and the interval of p (M2)
    excludes zero by a margin of 0.05; ultra-slow when M1 beats M2 in 95 % of the draws. The better
    law may still be a bad one: the verdict is that neither fits if it is farther from the mean
    curve than 2.5 % of its rise.

    The series has `seed`, `step` (the same steps for each seed, positive) and `distance`, of
    the phase of constant learning rate only.

    Source:
        Hoffer et al. 2017, arXiv:1705.08741 (logarithm); the comparison is ours.
    """
    wide = series.pivot_table(index="seed", columns="step", values="distance")
    steps = np.asarray(wide.columns, dtype=float)
    picks = _log_spaced(steps)
    t, distances = steps[picks], np.asarray(wide, dtype=float)[:, picks]
    count = len(distances)
    mean = distances.mean(axis=0, keepdims=True)
    is_alike = bool((np.ptp(distances, axis=0) <= _ROUNDING * mean).all())
    note = "one seed" if count < 2 else NO_SPREAD * is_alike
    resampled = mean if note else _resampled(distances, rng, draws)
    table = _table(t, mean, resampled)
    _, p = _fit(t, mean, LAWS["power"])
    p_drawn = None if note else _fit(t, resampled, LAWS["power"])[1]
    method = "c step**p, least squares at log-spaced steps; 95 % percentile bootstrap over seeds"
    power = Estimate.of(p[0], p_drawn, count, method, note)
    verdict = _verdict(table, power)
    if verdict in _LAW_OF and _distance(t, mean, _LAW_OF[verdict]) > _FARTHEST:
        verdict = "neither fits"
    return Diffusion(power, table, _local_exponents(t, mean[0]), verdict)


def _power(t: Array, p: float) -> Array:
    return np.stack([t**p], axis=1)


def _shifted(t: Array, p: float) -> Array:
    return np.stack([np.ones_like(t), t**p], axis=1)


def _logarithm(t: Array, _: float) -> Array:
    return np.stack([np.ones_like(t), np.log(t)], axis=1)


Basis = Callable[[Array, float], Array]

#: Each law's columns, given the steps and the exponent.
LAWS: dict[str, Basis] = {"logarithm": _logarithm, "power": _power, "shifted power": _shifted}
_PARAMETERS = {"logarithm": 2, "power": 2, "shifted power": 3}


def _fit(t: Array, y: Array, basis: Basis) -> tuple[Array, Array]:
    """Least residual sum of squares over the exponents, and that exponent, for each row of y."""
    if basis is _logarithm:
        return _rss(y, basis(t, 0)), np.zeros(len(y))
    sums = [_rss(y, basis(t / t.max(), p)) for p in _POWERS]
    return lowest(np.stack(sums, axis=1), _POWERS)


def _rss(y: Array, design: Array) -> Array:
    q, _ = np.linalg.qr(design)
    return np.maximum((y**2).sum(axis=1) - ((y @ q) ** 2).sum(axis=1), 0.0)


def _distance(t: Array, mean: Array, law: str) -> float:
    """Root mean square of a law's residuals, as a share of the mean curve's rise."""
    rss = float(_fit(t, mean, LAWS[law])[0][0])
    return float(np.sqrt(rss / len(t)) / max(np.ptp(mean), np.finfo(float).tiny))


def _table(t: Array, mean: Array, resampled: Array) -> pd.DataFrame:
    def score(y: Array) -> Array:
        return np.stack([aicc(_fit(t, y, b)[0], len(t), _PARAMETERS[n]) for n, b in LAWS.items()])

    scores, drawn = score(mean)[:, 0], score(resampled)
    winners = drawn[:2].argmin(axis=0)
    rows = [
        (law, _PARAMETERS[law], score, score - scores.min(), _share(winners, i))
        for i, (law, score) in enumerate(zip(LAWS, scores, strict=True))
    ]
    return pd.DataFrame(rows, columns=["law", "num_parameters", "aicc", "delta", "frequency"])


def _share(winners: Array, i: int) -> float:
    """Fraction of the draws that a law of two parameters wins; the third does not compete."""
    return float(np.mean(winners == i)) if i < 2 else np.nan


def _log_spaced(steps: Array) -> NDArray[np.intp]:
    wanted = np.geomspace(steps[0], steps[-1], _NUM_STEPS)
    return np.unique(np.searchsorted(steps, wanted).clip(0, len(steps) - 1))


def _resampled(distances: Array, rng: np.random.Generator, draws: int) -> Array:
    n = len(distances)
    mean = distances.mean(axis=0)
    stretched = (distances - mean) * stretch(n, n - 1)
    counts = rng.multinomial(n, np.full(n, 1 / n), size=draws)
    return mean + counts @ stretched / n


def _local_exponents(t: Array, mean: Array) -> tuple[float, float]:
    third = max(len(t) // 3, 2)
    ends = (slice(0, third), slice(-third, None))
    first, last = (np.polyfit(np.log(t[e]), np.log(mean[e]), 1)[0] for e in ends)
    return float(first), float(last)


def _verdict(table: pd.DataFrame, power: Estimate) -> str:
    frequency = dict(zip(table["law"], table["frequency"], strict=True))
    if not power.has_interval:
        return "inconclusive"
    if frequency["logarithm"] >= 0.95:
        return "ultra-slow"
    return "power law" if frequency["power"] >= 0.95 and power.low > 0.05 else "inconclusive"
