"""The best tuned value at each batch, by parabolas; the regret of each rule's rate."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from optuna.distributions import FloatDistribution, IntDistribution
from scipy import stats

from analysis.stats.batch_limits import REJECTED
from analysis.stats.laws import BENT, FIXED, compare_rules
from analysis.stats.optimum import Optima
from analysis.stats.replicates import (
    DRAWS,
    LEVEL,
    Array,
    describe_diverged,
    percentile_interval,
    stretch,
    student_factor,
)
from analysis.tuning.studies import Tuned, best_trials, finished_trials

Number = FloatDistribution | IntDistribution

FEWEST_SEEDS = 3  # studies of a batch with which seeds are resampled instead of trials
_FEWEST = 5  # trials for a parabola; two more for each further tuned number


@dataclass(frozen=True, slots=True)
class Half:
    """The half of a study's trials that a parabola is fitted to.

    Attributes:
        places: tuned numbers on their scales, shape (trials, keys).
        loss: shape (trials,).
    """

    places: Array
    loss: Array


@dataclass(slots=True)
class Resampler:
    """Bootstrap draws, as counts of how often each replicate is drawn."""

    rng: np.random.Generator
    draws: int
    _seeds: dict[int, Array] = field(default_factory=dict)

    def seed_counts(self, count: int) -> Array:
        """Shape (draws, count); the same at every batch, as a seed's luck is in all its runs."""
        if count not in self._seeds:
            self._seeds[count] = self.trial_counts(count)
        return self._seeds[count]

    def trial_counts(self, count: int) -> Array:
        """Shape (draws, count)."""
        equal = np.full(count, 1 / count)
        return self.rng.multinomial(count, equal, size=self.draws).astype(float)


def fewest_trials(numbers: dict[str, Number]) -> int:
    """Finished trials of a study that a parabola needs [count]."""
    return _FEWEST + 2 * (len(numbers) - 1)


def nearest_halves(trials: pd.DataFrame, numbers: dict[str, Number]) -> list[Half]:
    """For each study with enough trials, in order of seed, the half that a first fit puts lowest.

    The first fit is to the half with the lowest measured losses; if it has no minimum, that half is
    returned.
    """
    fewest = fewest_trials(numbers)
    whole: list[Half] = []
    for _, study in trials.groupby(["seed", "study"], sort=True, dropna=False):
        if len(study) >= fewest:
            values = {key: study[key].to_numpy(dtype=float) for key in numbers}
            scaled = [np.log(v) if numbers[key].log else v for key, v in values.items()]
            whole.append(Half(np.stack(scaled, axis=1), study["loss"].to_numpy(dtype=float)))
    if not whole:
        return []
    middle, spread = _center(whole)
    lowest = [_lowest(half, half.loss, fewest) for half in whole]
    left, right = _sum_moments(lowest, middle, spread)
    slopes, curvatures = np.split(np.linalg.pinv(left, rcond=1e-12, hermitian=True) @ right, 2)
    if not (curvatures > 0).any():
        return lowest
    found: list[Half] = []
    for half in whole:
        u = (half.places - middle) / spread
        found.append(_lowest(half, u @ slopes + u**2 @ np.maximum(curvatures, 0), fewest))
    return found


def _lowest(half: Half, by: Array, fewest: int) -> Half:
    size = max(fewest, (len(by) + 1) // 2)
    chosen = np.argsort(by, kind="stable")[:size]
    return Half(half.places[chosen], half.loss[chosen])


def vertices(halves: list[Half], key: int, resampler: Resampler) -> tuple[float, Array]:
    """Where the fitted loss is lowest in a key, and where in bootstrap draws of it.

    `key` is the index of a tuned number.

    Returns:
        The vertex and those of the draws, on the scale of the places; infinite towards the lower
        side where the parabola opens downwards.
    """
    middle, spread = _center(halves)
    count, keys = len(halves), len(middle)
    left_sum, right_sum = _sum_moments(halves, middle, spread)
    value = float(_vertex(left_sum[None], right_sum[None], key)[0])
    if count >= FEWEST_SEEDS:
        weights = resampler.seed_counts(count)
        left, right = zip(*(_moments(half, middle, spread) for half in halves), strict=True)
        drawn = np.tensordot(weights, np.stack(left), 1), weights @ np.stack(right)
        size, freedom = count, count - 1
    else:
        parts = [_resample_moments(half, middle, spread, resampler) for half in halves]
        drawn = sum(part[0] for part in parts), sum(part[1] for part in parts)
        size = sum(len(half.loss) for half in halves)
        freedom = max(1, size - 2 * keys - count)
    found = _vertex(np.asarray(drawn[0]), np.asarray(drawn[1]), key)
    if np.isfinite(value):
        found = value + (found - value) * stretch(size, freedom)
    return value * spread[key] + middle[key], found * spread[key] + middle[key]


def misfit(batches: Sequence[list[Half]]) -> str:
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
    terms: list[Array] = []
    for half in halves:
        u = (half.places - middle) / spread
        columns = np.concatenate([u**k for k in range(1, powers + 1)], axis=1)
        terms.append(columns - columns.mean(axis=0))
    design = np.concatenate(terms)
    loss = np.concatenate([half.loss - half.loss.mean() for half in halves])
    fit, _, rank, _ = np.linalg.lstsq(design, loss, rcond=None)
    return float(((loss - design @ fit) ** 2).sum()), int(rank), len(loss) - len(halves)


def _center(halves: list[Half]) -> tuple[Array, Array]:
    """Middle and spread of the places, in which the fit is well conditioned."""
    places = np.concatenate([half.places for half in halves])
    spread = places.std(axis=0)
    return places.mean(axis=0), np.where(spread > 0, spread, 1.0)


def _moments(half: Half, middle: Array, spread: Array) -> tuple[Array, Array]:
    """Cross products of a study's terms about their means, so that its own level drops out."""
    u = (half.places - middle) / spread
    terms = np.concatenate([u, u**2], axis=1)
    terms -= terms.mean(axis=0)
    return terms.T @ terms, terms.T @ (half.loss - half.loss.mean())


def _resample_moments(
    half: Half, middle: Array, spread: Array, resampler: Resampler
) -> tuple[Array, Array]:
    """The same for trials drawn with replacement, shapes (draws, terms, terms), (draws, terms)."""
    u = (half.places - middle) / spread
    terms, loss = np.concatenate([u, u**2], axis=1), half.loss - half.loss.mean()
    weights = resampler.trial_counts(len(loss))
    mean = weights @ terms / len(loss)
    products = terms[:, :, None] * terms[:, None, :]
    left: Array = (
        np.tensordot(weights, products, 1) - len(loss) * mean[:, :, None] * mean[:, None, :]
    )
    right = weights @ (terms * loss[:, None]) - mean * (weights @ loss)[:, None]
    return left, right


def _sum_moments(halves: list[Half], middle: Array, spread: Array) -> tuple[Array, Array]:
    left, right = zip(*(_moments(half, middle, spread) for half in halves), strict=True)
    return np.sum(left, axis=0), np.sum(right, axis=0)


def _vertex(left: Array, right: Array, key: int) -> Array:
    """-inf or inf if the parabola opens downwards."""
    terms = (np.linalg.pinv(left, rcond=1e-12, hermitian=True) @ right[..., None])[..., 0]
    slope, curvature = terms[:, key], terms[:, terms.shape[1] // 2 + key]
    with np.errstate(divide="ignore", invalid="ignore"):
        lowest = -slope / (2 * curvature)
    return np.where(curvature > 0, lowest, np.where(slope > 0, -np.inf, np.inf))


FEWEST_BATCHES = 3  # for a rule with a batch of its own


def tuned_optima(tuned: Tuned, key: str, rng: np.random.Generator, draws: int = DRAWS) -> Optima:
    """The best value of a tuned number at each batch, with bootstrap draws.

    ``loss = a + sum_k (b_k u_k + c_k u_k**2)`` by least squares on the half of each study's
    finished trials that lies nearest to the optimum, with an ``a`` for each study and ``u`` the
    tuned numbers on the scale they were tuned on; the vertex in `key`. The nearest half has the
    lowest losses by a first fit, to the trials with the lowest measured losses: a half chosen by
    measured losses alone would move the vertex towards lucky trials. If a batch has three or more
    studies (seeds), these are resampled, the same seeds at every batch, and the draws widened by
    `stretch`; else trials are resampled, and the interval does not include what another seed would
    have found.

    The key is a tuned number; or peak_lr, which is the tuned rate at that batch after its rule.

    Returns:
        The batches with enough finished trials; `num_seeds` is the fewest studies of a batch. There
        are no draws, hence no intervals, if the trials reject the parabolas (`misfit`).

    Raises:
        ValueError: if the key was not tuned as a number.
    """
    source = (tuned.rate or key) if key == "peak_lr" else key
    numbers = tuned.numbers()
    if source not in numbers:
        msg = f"key must be among the tuned numbers {', '.join(numbers)}; got {key}."
        raise ValueError(msg)
    ends = numbers[source]
    fits: list[tuple[float, ...]] = []
    draws_of: list[Array] = []
    fitted: list[list[Half]] = []
    done = finished_trials(tuned)
    resampler = Resampler(rng, draws)
    for batch in sorted(done["global_batch"].dropna().unique()):
        trials = done[done["global_batch"] == batch]
        studies = nearest_halves(trials, numbers)
        if not studies:
            continue
        fitted.append(studies)
        factor = (trials["peak_lr"] / trials[source]).median() if key == "peak_lr" else 1.0
        best, drawn = vertices(studies, list(numbers).index(source), resampler)
        with np.errstate(over="ignore"):
            value, drawn = (np.exp(v) if ends.log else v for v in (np.array(best), drawn))
        fits.append(
            (batch, *(factor * x for x in (float(value), ends.low, ends.high)), len(studies))
        )
        draws_of.append(factor * drawn)
    batches, best, low, high, counts = np.array(fits, dtype=float).reshape(-1, 5).T
    is_single = (counts < FEWEST_SEEDS).any()
    notes = ["intervals over trials, not over seeds"] if is_single else []
    rejected = misfit(fitted) if fitted else ""
    notes += filter(None, [rejected, describe_diverged(tuned.trials)])
    if (done.groupby(["global_batch", "study"]).size() < 1.5 * fewest_trials(numbers)).any():
        notes.append(
            "few trials: the parabola goes through most of them, not through those near the best"
        )
    return Optima(
        batches=batches,
        best=best,
        draws=np.stack(draws_of, axis=1) if fits and not rejected else None,
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
    table = optima.table()
    count, freedom = len(optima.batches), optima.num_seeds - 1
    ends = np.full((count, 2), np.nan)
    if optima.draws is not None and optima.num_seeds >= FEWEST_SEEDS:
        level = LEVEL ** (1 / count)
        wider = student_factor(freedom, level) / student_factor(freedom)
        with np.errstate(invalid="ignore", over="ignore"):
            drawn = (
                optima.best * (optima.draws / optima.best) ** wider
                if log
                else optima.best + (optima.draws - optima.best) * wider
            )
        ends = np.array([percentile_interval(drawn[:, i], level) for i in range(count)])
    table.insert(4, "joint_low", ends[:, 0])
    table.insert(5, "joint_high", ends[:, 1])
    return table


def regret(tuned: Tuned, rng: np.random.Generator, draws: int = 200) -> pd.DataFrame:
    """The cost of a rule's rate, scaled from the best of the smallest batch, over the tuned rate.

    The losses at both rates are interpolated within each study between the trials at the nearest
    rates, with other tuned settings as those trials had them.

    Returns:
        a row per rule and batch: `rule` (`saturating` and `surge` bend where they fit the tuned
        rates best), `global_batch`, `peak_lr` (the rule's), `tuned_peak_lr`, `regret` (mean over
        studies, in units of the objective; below 0 by interpolation alone; null where the rate
        lies beyond the trials), `low` and `high` (95 % Student interval over three or more
        studies, for these two rates), `note`. Where the interval of a tuned rate is wider than the
        range, the rate of the best trial is used instead.
    """
    optima = tuned_optima(tuned, "peak_lr", rng, draws)
    best, notes = _bounded_rates(tuned, optima)
    done = finished_trials(tuned)
    rows: list[tuple[object, ...]] = []
    for rule, factors in _rule_factors(optima):
        for i, batch in enumerate(optima.batches):
            rate = float(best[0] * factors[i])
            trials = done[done["global_batch"] == batch]
            lost = np.array(
                [_excess_loss(study, rate, best[i]) for _, study in trials.groupby("study")]
            )
            note = "this rate lies beyond the trials" if np.isnan(lost).any() else notes[i]
            rows.append((rule, int(batch), rate, float(best[i]), *_mean_interval(lost), note))
    columns = ["rule", "global_batch", "peak_lr", "tuned_peak_lr", "regret", "low", "high", "note"]
    return pd.DataFrame(rows, columns=columns)


def _bounded_rates(tuned: Tuned, optima: Optima) -> tuple[Array, list[str]]:
    """The tuned rates; for a batch whose interval exceeds its range, the median of its best trials.

    A parabola through trials that differ by less than their noise has its vertex anywhere.
    """
    table = optima.table()
    trials = best_trials(tuned)
    best, notes = optima.best.copy(), [""] * len(table)
    for i, row in table.iterrows():
        place = int(str(i))
        is_open = row["low"] < optima.low_edge[place] or row["high"] > optima.high_edge[place]
        if optima.is_rejected or is_open:
            here = trials[trials["global_batch"] == row["global_batch"]]
            best[place] = here["peak_lr"].median()
            why = "does not fit" if optima.is_rejected else "has no vertex"
            notes[place] = f"tuned_peak_lr is that of the best trial: the parabola {why}"
    return best, notes


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
    taken, tuned_one = np.interp(places, rates, curve.to_numpy(dtype=float))
    return np.nan if beyond.any() else float(taken - tuned_one)


def _mean_interval(values: Array) -> tuple[float, float, float]:
    mean = float(values.mean())
    if len(values) < FEWEST_SEEDS:
        return mean, np.nan, np.nan
    half = float(stats.sem(values) * stats.t.ppf(0.5 + LEVEL / 2, len(values) - 1))
    return mean, mean - half, mean + half
