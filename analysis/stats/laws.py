"""Laws fitted to best rates and to distances from the start, and compared by Akaike's criterion."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from analysis.stats.optimum import Optima
from analysis.stats.replicates import DRAWS, NO_SPREAD, ROUNDING, Array, Estimate, stretch
from analysis.stats.wild import add_without, drop_wild


def aicc(rss: Array, count: int, num_parameters: int) -> Array:
    """Akaike's criterion of a least-squares fit, corrected for few points.

    ``n log(rss / n) + 2 k + 2 k (k + 1) / (n - k - 1)``, where k counts the variance too.

    Args:
        rss: residual sums of squares.
        count: points, more than ``num_parameters + 2``.
        num_parameters: of the law, without the variance.

    Source:
        Burnham & Anderson 2002, Model Selection, section 2.4.
    """
    k = num_parameters + 1
    penalty = 2 * k + 2 * k * (k + 1) / (count - k - 1)
    return count * np.log(np.maximum(rss, 1e-12) / count) + penalty


def lowest(sums: Array, grid: Array) -> tuple[Array, Array]:
    """The least value of each row, and where on the grid it lies.

    Between grid points the place is the vertex of the parabola through the least value and its
    neighbours.

    The grid is evenly spaced.

    Returns:
        Values and places, each of shape (rows,).
    """
    best = sums.argmin(axis=1)
    rows = np.arange(len(sums))
    inner = np.clip(best, 1, len(grid) - 2)
    left, mid, right = (sums[rows, inner + d] for d in (-1, 0, 1))
    bend = np.maximum(left - 2 * mid + right, np.finfo(float).tiny)
    shift = np.clip(0.5 * (left - right) / bend, -1, 1) * (grid[1] - grid[0])
    return sums[rows, best], np.where(best == inner, grid[inner] + shift, grid[best])


#: From batches (batch,) and a scale (scales, 1) to the logarithm of the rate, up to a constant.
Shape = Callable[[Array, Array], Array]


#: Rules with a fixed exponent.
FIXED = {"none": 0.0, "sqrt": 0.5, "linear": 1.0}

#: Rules with a batch of their own, where they bend.
#: saturating: McCandlish et al. 2018, arXiv:1812.06162; surge: Li et al. 2024, arXiv:2405.14578.
BENT: dict[str, Shape] = {
    "saturating": lambda batches, scale: -np.log1p(scale / batches),
    "surge": lambda batches, scale: (
        -np.log(0.5 * (np.sqrt(scale / batches) + np.sqrt(batches / scale)))
    ),
}

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
        table: a row per rule, best first: `rule`, `num_parameters`, `rss`, `aicc`, `delta`,
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
    found = _compare_rules(optima)
    if not optima.without_wild:
        return found
    without = compare_rules(optima.without_wild)
    best = without.table["rule"].iloc[0] if len(without.table) else f"none: {without.note}"
    said = f"{optima.wild}; without, the lowest AICc is {best}"
    return replace(found, note="; ".join(filter(None, [said, found.note])))


def _compare_rules(optima: Optima) -> RuleComparison:
    batches = optima.batches
    if not (np.isfinite(optima.best) & (optima.best > 0)).all():
        note = "a best rate is beyond the grid; extend it"
        bend = Estimate.from_draws(np.nan, None, optima.num_seeds, "", note)
        table = pd.DataFrame(columns=[*_COLUMNS, "delta"])
        return RuleComparison(table=table, bends=dict.fromkeys(BENT, bend), note=note)
    fits = _fit_all(batches, np.log(optima.best)[None, :])
    scores = _scores(fits, len(batches))
    usable = {rule: float(score[0]) for rule, score in scores.items()}
    drawn, unbounded = None, ""  # logs of the draws with a best rate at every batch
    if optima.draws is not None and len(optima.draws):
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.log(optima.draws)
        drawn = logs[np.isfinite(logs).all(axis=1)]
        share = 1 - len(drawn) / len(logs)
        if share > 1 - _FEWEST_FINITE:
            drawn = None
            unbounded = (
                f"in {share:.0%} of the draws some batch has no best rate: rules not distinguished"
            )
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
        bends = np.exp(place)  # at an end of the search they are known from a single side
        bends = np.where(bends <= scales[0] * _AT_END, 0.0, bends)
        fits[rule] = rss, np.where(bends >= scales[-1] / _AT_END, np.inf, bends)
    return fits


def _rss(residuals: Array) -> Array:
    return ((residuals - residuals.mean(axis=1, keepdims=True)) ** 2).sum(axis=1)


def _scores(fits: dict[str, tuple[Array, Array]], n: int) -> dict[str, Array]:
    """AICc of each rule for which there are enough batches to rule out a perfect fit."""
    return {
        rule: aicc(rss, n, _PARAMETERS[rule])
        for rule, (rss, _) in fits.items()
        if n > _PARAMETERS[rule] + 2
    }


def _over_draws(
    batches: Array, fits: dict[str, tuple[Array, Array]], drawn: Array | None, num_seeds: int
) -> tuple[dict[str, float], dict[str, Estimate]]:
    method = "profile least squares in logarithms; 95 % percentile bootstrap over seeds"
    again = {} if drawn is None else _fit_all(batches, drawn)
    bends: dict[str, Estimate] = {}
    for rule in BENT:
        value = float(fits[rule][1][0])
        seen = 0 < value < np.inf
        note = "" if seen else f"no bend within {_BEYOND} times the batches: known from one side"
        drawn_bends = again[rule][1] if again else None
        bends[rule] = Estimate.from_draws(value, drawn_bends, num_seeds, method, note)
    scores = _scores(again, len(batches))
    names = list(scores)
    winners = np.argmin(np.stack([scores[name] for name in names]), axis=0) if names else []
    frequencies = {name: float(np.mean(np.asarray(winners) == i)) for i, name in enumerate(names)}
    return frequencies, bends


#: Steps that the third law, of three parameters and a variance, needs for its AICc.
FEWEST_STEPS = 6

#: A law is rejected if it is farther from the mean curve (root mean square / the curve's rise).
_FARTHEST = 0.025
_LAW_OF = {"power law": "power", "ultra-slow": "logarithm"}
_POWERS = np.linspace(0.02, 1.2, 119)
_NUM_STEPS = 60


@dataclass(frozen=True, slots=True)
class Diffusion:
    """Laws fitted to the distance from the start.

    Attributes:
        power: exponent p of ``a + c * step**p``.
        table: a row per law: `law`, `num_parameters`, `aicc`, `delta`, `frequency`.
        local_exponent: ``d log distance / d log step`` in the first and last third.
        verdict: ultra-slow, power law, inconclusive, or neither fits.
    """

    power: Estimate
    table: pd.DataFrame
    local_exponent: tuple[float, float]
    verdict: str

    def p_value(self, verdict: str) -> float:
        """One-sided p value of a verdict: the share of draws in which the other law is better."""
        return 1.0 - float(self.table.set_index("law")["frequency"][_LAW_OF[verdict]])


def constant_rate(runs: pd.DataFrame, curves: pd.DataFrame) -> pd.DataFrame:
    """The distance from the start over the longest stretch of epochs at a constant learning rate.

    The laws are about that phase: where the rate falls, the distance all but stops.

    Uses `run_id`, `seed`, `outcome` of the runs of a point, and `run_id`, `epoch`, `step`,
    `lr`, `distance_from_start` of the curves.

    Returns:
        `seed`, `step`, `distance` of the finished runs, at the steps that all of them have; no
        rows if there are fewer than six such steps.
    """
    finished = runs.loc[runs["outcome"] == "finished", ["run_id", "seed"]]
    rows = curves.merge(finished).dropna(subset=["distance_from_start"])
    rows = rows.sort_values(["run_id", "step"], ignore_index=True)
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
    law may still be bad: the verdict is that neither fits if it is farther from the mean
    curve than 2.5 % of its rise.

    The series has `seed`, `step` (the same steps for each seed, positive) and `distance`, of
    the phase of constant learning rate only.

    Source:
        Hoffer et al. 2017, arXiv:1705.08741 (logarithm); the comparison is ours.
    """
    wide = series.pivot_table(index="seed", columns="step", values="distance")
    steps = np.asarray(wide.columns, dtype=float)
    spaced = np.geomspace(steps[0], steps[-1], _NUM_STEPS)
    picks = np.unique(np.searchsorted(steps, spaced).clip(0, len(steps) - 1))
    t, distances = steps[picks], np.asarray(wide, dtype=float)[:, picks]
    count = len(distances)
    mean = distances.mean(axis=0, keepdims=True)
    is_alike = bool((np.ptp(distances, axis=0) <= ROUNDING * mean).all())
    note = "one seed" if count < 2 else NO_SPREAD * is_alike
    resampled = mean
    if not note:
        # Seeds are resampled whole, their deviations stretched for being few.
        counts = rng.multinomial(count, np.full(count, 1 / count), size=draws)
        resampled = mean + counts @ ((distances - mean) * stretch(count, count - 1)) / count
    table = _law_table(t, mean, resampled)
    _, p = _fit_law(t, mean, "power")
    p_drawn = None if note else _fit_law(t, resampled, "power")[1]
    method = "c step**p, least squares at log-spaced steps; 95 % percentile bootstrap over seeds"
    power = Estimate.from_draws(p[0], p_drawn, count, method, note)
    last = series[series["step"] == series["step"].max()].assign(outcome="finished")
    kept, wild = drop_wild(last, ["step"], "distance")
    if wild:
        without = diffusion(series[series["seed"].isin(kept["seed"])], rng, draws)
        power = add_without(power, wild, without.power)
    frequency = table.set_index("law")["frequency"]
    verdict = "inconclusive"
    if power.has_interval and frequency["logarithm"] >= 0.95:
        verdict = "ultra-slow"
    elif power.has_interval and frequency["power"] >= 0.95 and power.low > 0.05:
        verdict = "power law"
    if verdict in _LAW_OF:
        rss = float(_fit_law(t, mean, _LAW_OF[verdict])[0][0])
        rise = max(np.ptp(mean), np.finfo(float).tiny)
        verdict = "neither fits" if np.sqrt(rss / len(t)) / rise > _FARTHEST else verdict
    third = max(len(t) // 3, 2)
    first, last = (
        float(np.polyfit(np.log(t[part]), np.log(mean[0, part]), 1)[0])
        for part in (slice(0, third), slice(-third, None))
    )
    return Diffusion(power, table, (first, last), verdict)


Basis = Callable[[Array, float], Array]

#: Each law's columns, given the steps and the exponent.
LAWS: dict[str, Basis] = {
    "logarithm": lambda t, _: np.stack([np.ones_like(t), np.log(t)], axis=1),
    "power": lambda t, p: np.stack([t**p], axis=1),
    "shifted power": lambda t, p: np.stack([np.ones_like(t), t**p], axis=1),
}
_LAW_PARAMETERS = {"logarithm": 2, "power": 2, "shifted power": 3}


def _fit_law(t: Array, y: Array, law: str) -> tuple[Array, Array]:
    """Least residual sum of squares over the exponents, and that exponent, for each row of y."""
    if law == "logarithm":
        return _residuals(y, LAWS[law](t, 0)), np.zeros(len(y))
    sums = [_residuals(y, LAWS[law](t / t.max(), p)) for p in _POWERS]
    return lowest(np.stack(sums, axis=1), _POWERS)


def _residuals(y: Array, design: Array) -> Array:
    q, _ = np.linalg.qr(design)
    return np.maximum((y**2).sum(axis=1) - ((y @ q) ** 2).sum(axis=1), 0.0)


def _law_table(t: Array, mean: Array, resampled: Array) -> pd.DataFrame:
    def score(y: Array) -> Array:
        fits = [(_fit_law(t, y, law)[0], _LAW_PARAMETERS[law]) for law in LAWS]
        return np.stack([aicc(rss, len(t), count) for rss, count in fits])

    scores, drawn = score(mean)[:, 0], score(resampled)
    winners = drawn[:2].argmin(axis=0)  # the third law, of more parameters, does not compete
    shares = (float(np.mean(winners == 0)), float(np.mean(winners == 1)), np.nan)
    rows = [
        (law, _LAW_PARAMETERS[law], score, score - scores.min(), share)
        for law, score, share in zip(LAWS, scores, shares, strict=True)
    ]
    return pd.DataFrame(rows, columns=["law", "num_parameters", "aicc", "delta", "frequency"])
