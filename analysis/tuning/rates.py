"""The best tuned value at each batch, by one response; the regret of each rule's rate."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from optuna.distributions import FloatDistribution, IntDistribution
from scipy import stats

from analysis.stats.laws import BENT, FIXED, compare_rules
from analysis.stats.optimum import Optima, further_columns, optima_of
from analysis.stats.replicates import (
    DRAWS,
    LEVEL,
    Array,
    describe_diverged,
    percentile_interval,
    student_factor,
)
from analysis.stats.response import Response, fit_response
from analysis.stats.shapes import Points
from analysis.tuning.studies import Tuned, best_trials, finished_trials

Number = FloatDistribution | IntDistribution

FEWEST_BATCHES = 3  # for a rule with a batch of its own
FEWEST_SEEDS = 3  # studies of a batch for an interval over seeds
_FEWEST = 5  # trials for a response; two more for each further tuned number


def tuned_optima(tuned: Tuned, key: str, rng: np.random.Generator, draws: int = DRAWS) -> Optima:
    """The best value of a tuned number at each batch, with draws.

    One response for all batches, with a level for each study: `fit_response`. It is fitted to the
    half of each study's trials that a first fit to all of them puts nearest to the best: a half
    chosen by measured losses would move the best towards lucky trials. In other tuned numbers it is
    a parabola. Trials that diverged are known to be worse than all that finished.

    The key is a tuned number; or peak_lr, which is the tuned rate at that batch after its rule.

    Returns:
        The batches with enough finished trials; `num_seeds` is the fewest studies of a batch.

    Raises:
        ValueError: if the key was not tuned as a number.
    """
    source = (tuned.rate or key) if key == "peak_lr" else key
    numbers = tuned.numbers()
    if source not in numbers:
        msg = f"key must be among the tuned numbers {', '.join(numbers)}; got {key}."
        raise ValueError(msg)
    ends = numbers[source]
    is_log = ends.low > 0  # whatever scale it was tuned on
    trials = tuned.trials[tuned.trials["outcome"].isin(["finished", "diverged"])]
    trials = trials[trials["global_batch"].notna() & trials[key].notna()]
    counts = trials[trials["outcome"] == "finished"].groupby("study").size()
    trials = trials[trials["study"].isin(counts.index[counts >= _fewest_trials(numbers)])]
    num_seeds = int(trials.groupby("global_batch")["study"].nunique().min()) if len(trials) else 0
    blank = np.empty(0)
    optima = Optima(blank, blank, None, blank, blank, num_seeds, note="")
    if not len(trials):
        return optima
    others = [name for name in numbers if name != source]
    points = _points(trials, key, others, is_log=is_log, span=ends.high - ends.low)
    if not (first := fit_response(points, rng, 2)):
        return optima
    kept = _nearest_half(points, first.fit)
    response = fit_response(points.keep(kept), rng, draws) or first
    if num_seeds >= FEWEST_SEEDS:
        seeds = trials["seed"].to_numpy()[kept]
        response = _widen_by_seeds(response, points.keep(kept), seeds, rng)

    def settings(places: Array) -> Array:
        with np.errstate(over="ignore"):
            return np.exp(places) if is_log else places * (ends.high - ends.low)

    found = optima_of(response, num_seeds, rng, draws, settings)
    factors = (trials[key] / trials[source]).groupby(trials["global_batch"]).median().to_numpy()
    notes = ["intervals over trials, not over seeds"] if num_seeds < FEWEST_SEEDS else []
    notes.append(describe_diverged(tuned.trials))
    if (counts < 1.5 * _fewest_trials(numbers)).any():
        notes.append("few trials: the response goes through most, not those near the best alone")
    return replace(
        found,
        low_edge=factors * ends.low,
        high_edge=factors * ends.high,
        note="; ".join(filter(None, notes)),
        response=response if is_log else None,  # the power of another scale says nothing
    )


def _widen_by_seeds(
    response: Response, points: Points, seeds: NDArray[np.intp], rng: np.random.Generator
) -> Response:
    """Intervals at least as wide as fits without one of the seeds tell.

    A seed may move the best at all batches, which its own trials do not show.

    Source:
        Davison & Hinkley 1997, Bootstrap Methods, section 2.7.3 (jackknife).
    """
    fits = [fit_response(points.keep(seeds != seed), rng, 2) for seed in np.unique(seeds)]
    known = [fit for fit in fits if fit and len(fit.batches) == len(response.batches)]
    if len(known) < FEWEST_SEEDS:
        return response
    free = len(known) - 1
    wide = student_factor(free) * np.sqrt(free)
    bests, exponents = (
        np.array(v) for v in zip(*((f.best, f.exponent.value) for f in known), strict=True)
    )
    with np.errstate(invalid="ignore"):  # a best beyond the range is infinite
        factor = wide * bests.std(axis=0) / np.maximum(response.draws.std(axis=0), 1e-12)
        draws = response.best + (response.draws - response.best) * np.fmax(factor, 1.0)
    draws = np.where(np.isfinite(draws), draws, response.draws)
    half = float(stats.norm.ppf(0.5 + LEVEL / 2) * wide * exponents.std())
    found = response.exponent
    low, high = min(found.low, found.value - half), max(found.high, found.value + half)
    return replace(response, draws=draws, exponent=replace(found, low=low, high=high))


def _points(
    trials: pd.DataFrame, key: str, others: Sequence[str], *, is_log: bool, span: float
) -> Points:
    """Trials as points; one that is far worse than most of its study counts as such."""
    loss = trials["loss"].where(trials["outcome"] == "finished")
    by_study = loss.groupby(trials["study"])
    middle = by_study.transform("median")
    worst = middle + 10 * (middle - by_study.transform("min"))
    loss = loss.fillna(by_study.transform("max")).clip(upper=worst)
    values = trials[key].to_numpy(float)
    batches = trials["global_batch"].to_numpy(float)
    return Points(
        batches=batches,
        places=np.log(values) if is_log else values / span,
        measured=-loss.to_numpy(float),
        counts=np.ones(len(trials)),
        groups=np.unique(trials["study"], return_inverse=True)[1],
        is_bound=(trials["outcome"] == "diverged").to_numpy(),
        square=0.0,
        free=0.0,
        others=further_columns([trials[name].to_numpy(float) for name in others], batches),
    )


def _nearest_half(points: Points, fit: Array) -> NDArray[np.bool_]:
    """Half of the points of each group, those with the highest fit."""
    ranks = pd.Series(fit).groupby(points.groups).rank(ascending=False, method="first")
    sizes = np.bincount(points.groups)[points.groups]
    return (ranks <= np.maximum(_FEWEST, (sizes + 1) // 2)).to_numpy()


def _fewest_trials(numbers: dict[str, Number]) -> int:
    """Finished trials of a study that a response needs [count]."""
    return _FEWEST + 2 * (len(numbers) - 1)


def joint_table(optima: Optima, *, log: bool) -> pd.DataFrame:
    """The table of the best values, with intervals that hold at all batches at once.

    Of five intervals of 95 %, each of which may miss, all five hold in some 77 % of studies. The
    joint ones are of level ``0.95 ** (1 / batches)``, with the Student factor of that level.

    Returns:
        As `Optima.table`, with `joint_low` and `joint_high` after `high`; null with fewer than
        three seeds.

    Source:
        Sidak 1967, JASA 62, 626-633.
    """
    table, best = optima.table(), optima.best
    ends = np.full((len(best), 2), np.nan)
    if optima.draws is not None and optima.num_seeds >= FEWEST_SEEDS:
        level, freedom = LEVEL ** (1 / len(best)), optima.num_seeds - 1
        wider = student_factor(freedom, level) / student_factor(freedom)
        with np.errstate(invalid="ignore", over="ignore"):
            linear = best + (optima.draws - best) * wider
            drawn = best * (optima.draws / best) ** wider if log else linear
        ends = np.array([percentile_interval(column, level) for column in drawn.T])
    table.insert(4, "joint_low", ends[:, 0])
    table.insert(5, "joint_high", ends[:, 1])
    return table


def regret(tuned: Tuned, optima: Optima) -> pd.DataFrame:
    """The cost of a rule's rate, scaled from the best of the smallest batch, over the tuned rate.

    The losses at both rates are interpolated within each study between the trials at the nearest
    rates, with other tuned settings as those trials had them. A parabola through trials that differ
    by less than their noise has its vertex anywhere: where the interval of a tuned rate is wider
    than the range the median rate of the best trials is used instead.

    Args:
        tuned: the studies.
        optima: of their peak_lr.

    Returns:
        a row per rule and batch: `rule` (`saturating` and `surge` bend where they fit the tuned
        rates best), `global_batch`, `peak_lr` (the rule's), `tuned_peak_lr`, `regret` (mean over
        studies, in units of the objective; below 0 by interpolation alone; null where the rate
        lies beyond the trials), `low` and `high` (95 % Student interval over three or more
        studies, for these two rates), `note`.
    """
    best_of_studies, done = best_trials(tuned), finished_trials(tuned)
    best: list[float] = []
    notes: list[str] = []
    table = optima.table()
    is_open = (table["low"] < optima.low_edge) | (table["high"] > optima.high_edge)
    for batch, rate, is_unbounded in zip(optima.batches, optima.best, is_open, strict=True):
        here = best_of_studies.loc[best_of_studies["global_batch"] == batch, "peak_lr"]
        best.append(float(here.median() if is_unbounded else rate))
        note = "tuned_peak_lr is that of the best trial: the range does not hold the interval"
        notes.append(note if is_unbounded else "")
    rows: list[tuple[object, ...]] = []
    for rule, factors in _rule_factors(optima):
        for batch, factor, tuned_rate, note in zip(
            optima.batches, factors, best, notes, strict=True
        ):
            rate = float(best[0] * factor)
            trials = done[done["global_batch"] == batch]
            losses = [_excess_loss(study, rate, tuned_rate) for _, study in trials.groupby("study")]
            lost = np.array(losses)
            mean, half = float(lost.mean()), np.nan
            if len(lost) >= FEWEST_SEEDS:
                half = float(stats.sem(lost) * stats.t.ppf(0.5 + LEVEL / 2, len(lost) - 1))
            limit = "this rate lies beyond the trials" if np.isnan(mean) else note
            rows.append((rule, int(batch), rate, tuned_rate, mean, mean - half, mean + half, limit))
    columns = ["rule", "global_batch", "peak_lr", "tuned_peak_lr", "regret", "low", "high", "note"]
    return pd.DataFrame(rows, columns=columns)


def _rule_factors(optima: Optima) -> Iterator[tuple[str, Array]]:
    """Each rule with its rates as multiples of the first."""
    ratios = optima.batches / optima.batches[0]
    yield from ((rule, ratios**exponent) for rule, exponent in FIXED.items())
    if len(optima.batches) >= FEWEST_BATCHES:
        for rule, bend in compare_rules(optima).bends.items():
            ends = optima.batches.min() / 1e3, optima.batches.max() * 1e3  # as good as no bend
            shape = BENT[rule](optima.batches, np.clip([bend.value], *ends))
            yield rule, np.exp(shape - shape[0])


def _excess_loss(trials: pd.DataFrame, rate: float, best: float) -> float:
    """A study's loss at a rate minus that at the best rate; nan beyond its trials."""
    curve = trials.groupby("peak_lr")["loss"].mean().sort_index()
    rates = np.log(curve.index.to_numpy(dtype=float))
    places = np.log([rate, best])
    beyond = (places < rates[0]) | (places > rates[-1])
    at_rate, at_best = np.interp(places, rates, curve.to_numpy(dtype=float))
    return np.nan if beyond.any() else float(at_rate - at_best)
