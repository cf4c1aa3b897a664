"""Which learning-rate rule explains the best rates: AICc, with frequencies over the bootstrap."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.stats.model_selection import aicc, lowest
from analysis.stats.optimum import Optima
from analysis.stats.replicates import Array, Estimate

#: From batches (batch,) and a scale (scales, 1) to the logarithm of the rate, up to a constant.
Shape = Callable[[Array, Array], Array]


def _saturating(batches: Array, scale: Array) -> Array:
    return -np.log1p(scale / batches)


def _surge(batches: Array, scale: Array) -> Array:
    return -np.log(0.5 * (np.sqrt(scale / batches) + np.sqrt(batches / scale)))


#: Rules with a fixed exponent.
FIXED = {"none": 0.0, "sqrt": 0.5, "linear": 1.0}

#: Rules with a batch of their own, where they bend.
#: saturating: McCandlish et al. 2018, arXiv:1812.06162; surge: Li et al. 2024, arXiv:2405.14578.
BENT: dict[str, Shape] = {"saturating": _saturating, "surge": _surge}

_GRID_POINTS = 121
#: Bends are searched up to this factor beyond the batches; within the second factor of an end of
#: the search, they count as being at that end.
_BEYOND, _AT_END = 30, 1.001
#: Share of the draws that must have a best rate at every batch: the others cannot be fitted.
_FEWEST_FINITE = 0.95


@dataclass(frozen=True, slots=True)
class RuleComparison:
    """Rules fitted to the best learning rate of each batch.

    Attributes:
        table: one row per rule, best first: `rule`, `num_parameters`, `rss`, `aicc`, `delta`,
            `frequency` (share of bootstrap draws in which it has the lowest AICc; missing where
            too many draws have no best rate at some batch).
        bends: the fitted bend of `saturating` and `surge` [examples], by rule.
        note: what limits it.
    """

    table: pd.DataFrame
    bends: dict[str, Estimate]
    note: str


def compare_rules(optima: Optima) -> RuleComparison:
    """Fit none, sqrt, linear, a free power, saturating and surge to the best rates.

    Each is fitted to log best by least squares over batches, and scored by `aicc`.

    Rules of two parameters need five batches or more, the others four. No rule is fitted if a
    best rate is beyond the grid.

    Source:
        Burnham & Anderson 2002, Model Selection, section 6.6 (frequencies).
    """
    batches = optima.batches
    if not (np.isfinite(optima.best) & (optima.best > 0)).all():
        return _unfitted(optima)
    fits = _fit_all(batches, np.log(optima.best)[None, :])
    scores = _scores(fits, len(batches))
    usable = {rule: float(score[0]) for rule, score in scores.items()}
    drawn, unbounded = _finite_logs(optima.draws)
    frequencies, bends = _over_draws(batches, fits, drawn, optima.num_seeds)
    rows = [
        (rule, _PARAMETERS[rule], float(fits[rule][0][0]), usable[rule], frequencies.get(rule))
        for rule in sorted(usable, key=lambda rule: usable[rule])
    ]
    table = pd.DataFrame(rows, columns=_COLUMNS)
    table.insert(4, "delta", table["aicc"] - table["aicc"].min())
    notes = [unbounded] if unbounded else []
    if len(batches) < 5:
        notes.append("rules of two parameters need five batches or more, the others four")
    return RuleComparison(table=table, bends=bends, note="; ".join(notes))


def _unfitted(optima: Optima) -> RuleComparison:
    note = "a best rate is beyond the grid; extend it"
    bend = Estimate.of(np.nan, None, optima.num_seeds, "", note)
    table = pd.DataFrame(columns=[*_COLUMNS, "delta"])
    return RuleComparison(table=table, bends=dict.fromkeys(BENT, bend), note=note)


_COLUMNS = ["rule", "num_parameters", "rss", "aicc", "frequency"]
_PARAMETERS = {"none": 1, "sqrt": 1, "linear": 1, "power": 2, "saturating": 2, "surge": 2}


def _fit_all(batches: Array, y: Array) -> dict[str, tuple[Array, Array]]:
    """Residual sums of squares and bends, each of shape (draws,), by rule."""
    x = np.log(batches)
    fits = {rule: (_rss(y - b * x), np.full(len(y), np.nan)) for rule, b in FIXED.items()}
    slope = ((y - y.mean(axis=1, keepdims=True)) @ (x - x.mean())) / np.sum((x - x.mean()) ** 2)
    fits["power"] = (_rss(y - slope[:, None] * x), slope)
    scales = np.geomspace(batches.min() / _BEYOND, batches.max() * _BEYOND, _GRID_POINTS)
    for rule, shape in BENT.items():
        curves = shape(batches[None, :], scales[:, None])
        sums = np.stack([_rss(y - curve) for curve in curves], axis=1)
        rss, place = lowest(sums, np.log(scales))
        fits[rule] = rss, _unbounded(np.exp(place), scales)
    return fits


def _unbounded(bends: Array, scales: Array) -> Array:
    """Set bends at an end of the search to 0 or infinity: they are known from one side only."""
    inside = np.where(bends <= scales[0] * _AT_END, 0.0, bends)
    return np.where(bends >= scales[-1] / _AT_END, np.inf, inside)


def _rss(residuals: Array) -> Array:
    return ((residuals - residuals.mean(axis=1, keepdims=True)) ** 2).sum(axis=1)


def _scores(fits: dict[str, tuple[Array, Array]], n: int) -> dict[str, Array]:
    """AICc of each rule for which there are enough batches to rule out a perfect fit."""
    return {
        rule: aicc(rss, n, _PARAMETERS[rule])
        for rule, (rss, _) in fits.items()
        if n > _PARAMETERS[rule] + 2
    }


def _finite_logs(draws: Array | None) -> tuple[Array | None, str]:
    """Logs of the draws with a best rate at every batch, None if too few have one; and a note."""
    if draws is None or not len(draws):
        return None, ""
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(draws)
    finite = logs[np.isfinite(logs).all(axis=1)]
    if len(finite) >= _FEWEST_FINITE * len(draws):
        return finite, ""
    share = 1 - len(finite) / len(draws)
    return None, f"in {share:.0%} of the draws some batch has no best rate: rules not distinguished"


def _over_draws(
    batches: Array,
    fits: dict[str, tuple[Array, Array]],
    drawn: Array | None,
    num_seeds: int,
) -> tuple[dict[str, float], dict[str, Estimate]]:
    method = "profile least squares in logarithms; 95 % percentile bootstrap over seeds"
    again = {} if drawn is None else _fit_all(batches, drawn)
    bends: dict[str, Estimate] = {}
    for rule in BENT:
        value = float(fits[rule][1][0])
        seen = 0 < value < np.inf
        note = "" if seen else f"no bend within {_BEYOND} times the batches: known from one side"
        drawn_bends = again[rule][1] if again else None
        bends[rule] = Estimate.of(value, drawn_bends, num_seeds, method, note)
    scores = _scores(again, len(batches))
    names = list(scores)
    winners = np.argmin(np.stack([scores[name] for name in names]), axis=0) if names else []
    frequencies = {name: float(np.mean(np.asarray(winners) == i)) for i, name in enumerate(names)}
    return frequencies, bends
