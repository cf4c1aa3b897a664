"""The best tuned value at each batch, by parabolas; the regret of each rule's rate."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from optuna.distributions import FloatDistribution, IntDistribution
from scipy import stats

from analysis.stats.laws import BENT, FIXED, compare_rules
from analysis.stats.optimum import Optima
from analysis.stats.replicates import (
    DRAWS,
    LEVEL,
    REJECTED,
    Array,
    describe_diverged,
    percentile_interval,
    stretch,
    student_factor,
)
from analysis.tuning.studies import Tuned, best_trials, finished_trials

Number = FloatDistribution | IntDistribution

FEWEST_BATCHES = 3  # for a rule with a batch of its own
FEWEST_SEEDS = 3  # studies of a batch with which seeds are resampled instead of trials
_FEWEST = 5  # trials for a parabola; two more for each further tuned number


def tuned_optima(tuned: Tuned, key: str, rng: np.random.Generator, draws: int = DRAWS) -> Optima:
    """The best value of a tuned number at each batch, with bootstrap draws.

    ``loss = a + sum_k (b_k u_k + c_k u_k**2)`` by least squares on the half of each study's
    finished trials that lies nearest to the optimum, with an ``a`` for each study and ``u`` the
    tuned numbers on the scale they were tuned on; the vertex in `key`. The nearest half has the
    lowest losses by a first fit, to the trials with the lowest measured losses: a half chosen by
    measured losses alone would move the vertex towards lucky trials.

    If a batch has three or more studies (seeds), these are resampled. The same seeds are drawn at
    every batch, as a seed's luck is in all its runs, and the draws are widened by `stretch`. Else
    trials are resampled, and the interval does not include what another seed would have found.

    The key is a tuned number; or peak_lr, which is the tuned rate at that batch after its rule.

    Returns:
        The batches with enough finished trials; `num_seeds` is the fewest studies of a batch. There
        are no draws, hence no intervals, if the trials reject the parabolas (`describe_misfit`).

    Raises:
        ValueError: if the key was not tuned as a number.
    """
    source = (tuned.rate or key) if key == "peak_lr" else key
    numbers = tuned.numbers()
    if source not in numbers:
        msg = f"key must be among the tuned numbers {', '.join(numbers)}; got {key}."
        raise ValueError(msg)
    ends = numbers[source]
    rows: list[tuple[float, ...]] = []
    draws_of: list[Array] = []
    fitted: list[list[Half]] = []
    done = finished_trials(tuned)
    seed_counts: dict[int, Array] = {}  # by the number of seeds
    for batch in sorted(done["global_batch"].dropna().unique()):
        trials = done[done["global_batch"] == batch]
        halves = nearest_halves(trials, numbers)
        if not halves:
            continue
        count = len(halves)
        if count >= FEWEST_SEEDS and count not in seed_counts:
            seed_counts[count] = resample_counts(rng, count, draws)
        best, drawn = _fit_vertex(
            halves, list(numbers).index(source), seed_counts.get(count), rng, draws
        )
        with np.errstate(over="ignore"):
            value, drawn = (np.exp(v) if ends.log else v for v in (np.array(best), drawn))
        factor = (trials["peak_lr"] / trials[source]).median() if key == "peak_lr" else 1.0
        rows.append((batch, *(factor * x for x in (float(value), ends.low, ends.high)), count))
        draws_of.append(factor * drawn)
        fitted.append(halves)
    batches, best, low, high, counts = np.array(rows, dtype=float).reshape(-1, 5).T
    notes = ["intervals over trials, not over seeds"] if (counts < FEWEST_SEEDS).any() else []
    rejected = describe_misfit(fitted) if fitted else ""
    notes += filter(None, [rejected, describe_diverged(tuned.trials)])
    if (done.groupby(["global_batch", "study"]).size() < 1.5 * _fewest_trials(numbers)).any():
        notes.append(
            "few trials: the parabola goes through most of them, not through those near the best"
        )
    return Optima(
        batches=batches,
        best=best,
        draws=np.stack(draws_of, axis=1) if rows and not rejected else None,
        low_edge=low,
        high_edge=high,
        num_seeds=int(min(counts, default=0)),
        note="; ".join(notes),
        is_rejected=bool(rejected),
    )


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


@dataclass(frozen=True, slots=True)
class Half:
    """The half of a study's trials that a parabola is fitted to.

    Attributes:
        places: tuned numbers on their scales, shape (trials, keys).
        loss: shape (trials,).
    """

    places: Array
    loss: Array


def nearest_halves(trials: pd.DataFrame, numbers: dict[str, Number]) -> list[Half]:
    """For each study with enough trials, in order of seed, the half that a first fit puts lowest.

    The first fit is to the half with the lowest measured losses; if it has no minimum, that half is
    returned.
    """
    fewest = _fewest_trials(numbers)

    def lowest_half(whole: Half, loss: Array) -> Half:
        chosen = np.argsort(loss, kind="stable")[: max(fewest, (len(loss) + 1) // 2)]
        return Half(whole.places[chosen], whole.loss[chosen])

    studies: list[Half] = []
    for _, study in trials.groupby(["seed", "study"], sort=True, dropna=False):
        if len(study) >= fewest:
            values = {key: study[key].to_numpy(dtype=float) for key in numbers}
            scaled = [np.log(v) if numbers[key].log else v for key, v in values.items()]
            studies.append(Half(np.stack(scaled, axis=1), study["loss"].to_numpy(dtype=float)))
    if not studies:
        return []
    middle, spread = _center(studies)
    lowest = [lowest_half(study, study.loss) for study in studies]
    left, right = _moments(lowest, middle, spread)
    slopes, curvatures = np.split(_solve(left.sum(axis=0), right.sum(axis=0))[0], 2)
    if not (curvatures > 0).any():
        return lowest
    scaled = [(study.places - middle) / spread for study in studies]
    first_fit = [u @ slopes + u**2 @ np.maximum(curvatures, 0) for u in scaled]
    return [lowest_half(study, loss) for study, loss in zip(studies, first_fit, strict=True)]


def _fewest_trials(numbers: dict[str, Number]) -> int:
    """Finished trials of a study that a parabola needs [count]."""
    return _FEWEST + 2 * (len(numbers) - 1)


def resample_counts(rng: np.random.Generator, count: int, draws: int) -> Array:
    """How often each replicate is in each bootstrap draw, shape (draws, count)."""
    return rng.multinomial(count, np.full(count, 1 / count), size=draws).astype(float)


def _fit_vertex(
    halves: list[Half], key: int, seed_counts: Array | None, rng: np.random.Generator, draws: int
) -> tuple[float, Array]:
    """Where the fitted loss is lowest in a key, and where in bootstrap draws of it.

    `key` is the index of a tuned number; without counts of the seeds, trials are resampled.

    Returns:
        The vertex and those of the draws, on the scale of the places; infinite towards the lower
        side where the parabola opens downwards.
    """
    middle, spread = _center(halves)
    left, right = _moments(halves, middle, spread)
    value = float(_vertex(left.sum(axis=0), right.sum(axis=0), key)[0])
    if seed_counts is not None:
        size, freedom = len(halves), len(halves) - 1
        found = _vertex(np.tensordot(seed_counts, left[:, 0], 1), seed_counts @ right[:, 0], key)
    else:
        size = sum(len(half.loss) for half in halves)
        freedom = max(1, size - 2 * len(middle) - len(halves))
        counts = [resample_counts(rng, len(half.loss), draws) for half in halves]
        left, right = _moments(halves, middle, spread, counts)
        found = _vertex(left.sum(axis=0), right.sum(axis=0), key)
    if np.isfinite(value):
        found = value + (found - value) * stretch(size, freedom)
    return value * spread[key] + middle[key], found * spread[key] + middle[key]


def _center(halves: list[Half]) -> tuple[Array, Array]:
    """Middle and spread of the places, in which the fit is well conditioned."""
    places = np.concatenate([half.places for half in halves])
    spread = places.std(axis=0)
    return places.mean(axis=0), np.where(spread > 0, spread, 1.0)


def _moments(
    halves: list[Half], middle: Array, spread: Array, counts: Sequence[Array] | None = None
) -> tuple[Array, Array]:
    """Cross products of each study's terms about their means, so that its own level drops out.

    `counts` has, for each study, how often each trial is in each draw, shape (draws, trials);
    without them every trial is there once, as in a single draw.

    Returns:
        Products of the terms with each other, shape (studies, draws, terms, terms), and with the
        loss, shape (studies, draws, terms).
    """
    lefts: list[Array] = []
    rights: list[Array] = []
    for i, half in enumerate(halves):
        terms, loss = _center_terms(half, middle, spread, 2), half.loss - half.loss.mean()
        weights = counts[i] if counts else np.ones((1, len(loss)))
        mean = weights @ terms / len(loss)
        products = np.tensordot(weights, terms[:, :, None] * terms[:, None, :], 1)
        lefts.append(products - len(loss) * mean[:, :, None] * mean[:, None, :])
        rights.append(weights @ (terms * loss[:, None]) - mean * (weights @ loss)[:, None])
    return np.stack(lefts), np.stack(rights)


def _center_terms(half: Half, middle: Array, spread: Array, powers: int) -> Array:
    """Powers of a study's places about their means, shape (trials, terms)."""
    u = (half.places - middle) / spread
    terms = np.concatenate([u**k for k in range(1, powers + 1)], axis=1)
    return terms - terms.mean(axis=0)


def _solve(left: Array, right: Array) -> Array:
    """Slopes, then curvatures, of each draw."""
    return (np.linalg.pinv(left, rcond=1e-12, hermitian=True) @ right[..., None])[..., 0]


def _vertex(left: Array, right: Array, key: int) -> Array:
    """-inf or inf if the parabola opens downwards."""
    slopes, curvatures = np.split(_solve(left, right), 2, axis=-1)
    slope, curvature = slopes[:, key], curvatures[:, key]
    with np.errstate(divide="ignore", invalid="ignore"):
        lowest = -slope / (2 * curvature)
    return np.where(curvature > 0, lowest, np.where(slope > 0, -np.inf, np.inf))


def describe_misfit(batches: Sequence[list[Half]]) -> str:
    """Why the parabolas of all batches together are rejected; empty if they are not.

    Trials have no replicates, so the scatter about a cubic stands for them: an F test of the cubic
    terms.
    """
    square, square_terms, _ = np.sum([_scatter(halves, 2) for halves in batches], axis=0)
    cubic, terms, count = np.sum([_scatter(halves, 3) for halves in batches], axis=0)
    extra, freedom = terms - square_terms, count - terms
    if min(extra, freedom) < 1 or cubic <= 0:
        return ""
    f = (square - cubic) / extra / (cubic / freedom)
    p = float(stats.f.sf(f, extra, freedom))
    return f"the parabola does not fit (cubic F = {f:.3g}, p = {p:.2g})" if p < REJECTED else ""


def _scatter(halves: list[Half], powers: int) -> tuple[float, int, int]:
    """Sum of squares about a polynomial, its number of terms, and of trials minus studies."""
    middle, spread = _center(halves)
    design = np.concatenate([_center_terms(half, middle, spread, powers) for half in halves])
    loss = np.concatenate([half.loss - half.loss.mean() for half in halves])
    fit, _, rank, _ = np.linalg.lstsq(design, loss, rcond=None)
    return float(((loss - design @ fit) ** 2).sum()), int(rank), len(loss) - len(halves)


def regret(tuned: Tuned, optima: Optima) -> pd.DataFrame:
    """The cost of a rule's rate, scaled from the best of the smallest batch, over the tuned rate.

    The losses at both rates are interpolated within each study between the trials at the nearest
    rates, with other tuned settings as those trials had them. A parabola through trials that differ
    by less than their noise has its vertex anywhere: where the interval of a tuned rate is wider
    than the range, or parabolas are rejected, the median rate of the best trials is used instead.

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
        is_replaced = optima.is_rejected or is_unbounded
        here = best_of_studies.loc[best_of_studies["global_batch"] == batch, "peak_lr"]
        best.append(float(here.median() if is_replaced else rate))
        why = "does not fit" if optima.is_rejected else "has no vertex"
        note = f"tuned_peak_lr is that of the best trial: the parabola {why}"
        notes.append(note if is_replaced else "")
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
