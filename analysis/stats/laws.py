"""Laws fitted to best rates and to distances from the start, and compared by Akaike's criterion."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from analysis.stats.optimum import Optima
from analysis.stats.outliers import add_without, drop_wild
from analysis.stats.replicates import DRAWS, LEVEL, NO_SPREAD, ROUNDING, Array, Estimate, stretch
from analysis.stats.response import EXPONENTS
from analysis.stats.shapes import best_shape, fit_all_shapes, lowest, search_law


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

_BEYOND = 30  # times the batches: as far as bends are searched


@dataclass(frozen=True, slots=True)
class RuleComparison:
    """Rules fitted to all runs, by one response that each rule shifts.

    Attributes:
        table: a row per rule, best first: `rule`, `num_parameters` (of the rule), `aicc`,
            `delta`, `weight` (Akaike's), `p` (against the free power of the batch, which a rule
            with a fixed exponent is; small: the rule is excluded).
        bends: the fitted bend of `saturating` and `surge` [examples], by rule.
        note: what limits it.
    """

    table: pd.DataFrame
    bends: dict[str, Estimate]
    note: str

    @property
    def not_excluded(self) -> list[str]:
        """Rules with a fixed exponent that these runs do not exclude at 5 %."""
        rows = self.table[self.table["rule"].isin([*FIXED])]
        return list(rows.loc[rows["p"] > 1 - LEVEL, "rule"])


_COLUMNS = ["rule", "num_parameters", "aicc", "delta", "weight", "p"]


def compare_rules(optima: Optima) -> RuleComparison:
    """Fit none, sqrt, linear, a free power, saturating and surge to the response of all batches.

    Each rule says where the response lies at each batch; it is scored by `aicc` over all points,
    at the shape that suits it best. Rules with a bend need five batches or more.

    Source:
        Burnham & Anderson 2002, Model Selection, sections 2.4 and 2.9.
    """
    found = _compare_rules(optima)
    if not optima.without_wild:
        return found
    without = compare_rules(optima.without_wild)
    best = without.table["rule"].iloc[0] if len(without.table) else f"none: {without.note}"
    said = f"{optima.wild}; without, the lowest AICc is {best}"
    return replace(found, note="; ".join(filter(None, [said, found.note])))


def _compare_rules(optima: Optima) -> RuleComparison:
    response = optima.response
    if response is None or len(optima.batches) < 2:
        note = "one response does not fit all batches" if len(optima.batches) > 1 else "one batch"
        unknown = Estimate.from_draws(np.nan, None, optima.num_seeds, "", note)
        return RuleComparison(pd.DataFrame(columns=_COLUMNS), dict.fromkeys(BENT, unknown), note)
    fitters, batches = response.fitters, optima.batches
    rows: list[tuple[str, int, float, float]] = []
    for rule, p in FIXED.items():
        shapes = fit_all_shapes(fitters, response.law(np.array([[p]])), 0)
        rows.append((rule, 0, best_shape(shapes).criterion, response.chance_of(p)))
    rows.append(("power", 1, response.shape.criterion, 1.0))
    bends: dict[str, Estimate] = {}
    ends = np.log([batches.min() / _BEYOND, batches.max() * _BEYOND])
    places = np.linspace(ends[0], ends[1], len(EXPONENTS))
    for rule, shape in BENT.items():
        bend, shapes, _ = search_law(fitters, places, lambda s, f=shape: f(batches, np.exp(s)))
        value, low, high = np.exp([bend.value, bend.low, bend.high])
        is_seen = ends[0] + 0.01 < bend.value < ends[1] - 0.01
        note = "" if is_seen else f"no bend within {_BEYOND} times the batches: known from one side"
        value = value if is_seen else (0.0 if bend.value < ends.mean() else np.inf)
        bends[rule] = Estimate(float(value), low, high, optima.num_seeds, bend.method, note)
        if len(batches) >= 5:
            rows.append((rule, 1, best_shape(shapes).criterion, np.nan))
    frame = pd.DataFrame(rows, columns=["rule", "num_parameters", "aicc", "p"])
    frame = frame.sort_values("aicc", kind="stable", ignore_index=True)
    frame["delta"] = frame["aicc"] - frame["aicc"].min()
    likelihood = np.exp(-frame["delta"] / 2)
    frame["weight"] = likelihood / likelihood.sum()
    note = "" if len(batches) >= 5 else "Rules with a bend need five batches or more."
    return RuleComparison(frame[_COLUMNS], bends, note)


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
