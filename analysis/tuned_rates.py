"""The best tuned value at each batch with an interval, and the regret of each rule's rate."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from optuna.distributions import FloatDistribution, IntDistribution

from analysis.stats.optimum import Optima
from analysis.stats.replicates import DRAWS, Array, stretch
from analysis.stats.rules import FIXED
from analysis.tuning import Tuned, finished

_FEWEST = 5  # trials for a parabola; two more for each further tuned number
_FEWEST_SEEDS = 3  # studies of a batch from which seeds are drawn, not trials


def tuned_optima(tuned: Tuned, key: str, rng: np.random.Generator, draws: int = DRAWS) -> Optima:
    """The best value of a tuned number at each batch, with bootstrap draws.

    ``loss = a + sum_k (b_k u_k + c_k u_k**2)`` by least squares on the better half of each study's
    finished trials, with an ``a`` for each study and ``u`` the tuned numbers on the scale they were
    tuned on; the vertex in `key`. Where a batch has three or more studies (seeds), these are drawn
    with replacement, spread as `stretch` says; else trials are, and what another seed would have
    found is not in the interval.

    Args:
        tuned: studies of several batches.
        key: a tuned number; or peak_lr, which is base_lr at that batch after its rule.
        rng: of the bootstrap.
        draws: of the bootstrap.

    Returns:
        The batches with enough finished trials; `num_seeds` is the fewest studies of a batch.

    Raises:
        ValueError: if the key was not tuned as a number.
    """
    source = "base_lr" if key == "peak_lr" else key
    numbers = tuned.numbers()
    if source not in numbers:
        msg = f"key must be among the tuned numbers {', '.join(numbers)}; got {key}."
        raise ValueError(msg)
    ends = numbers[source]
    fits: list[_Fit] = []
    done = finished(tuned)
    for batch in sorted(done["global_batch"].dropna().unique()):
        trials = done[done["global_batch"] == batch]
        studies = _better_halves(trials, numbers)
        if not studies:
            continue
        factor = (trials["peak_lr"] / trials["base_lr"]).median() if key == "peak_lr" else 1.0
        best, drawn = _vertices(studies, list(numbers).index(source), rng, draws)
        value, spread = _unscaled(np.array([best]), ends), _unscaled(drawn, ends)
        low, high = ends.low * factor, ends.high * factor
        fits.append(_Fit(batch, value[0] * factor, spread * factor, low, high, len(studies)))
    single = any(fit.num_studies < _FEWEST_SEEDS for fit in fits)
    return Optima(
        batches=np.array([fit.batch for fit in fits]),
        best=np.array([fit.best for fit in fits]),
        draws=np.stack([fit.draws for fit in fits], axis=1) if fits else None,
        low_edge=np.array([fit.low_edge for fit in fits]),
        high_edge=np.array([fit.high_edge for fit in fits]),
        num_seeds=min((fit.num_studies for fit in fits), default=0),
        num_diverged=int((tuned.trials["outcome"] == "diverged").sum()),
        note="intervals over trials, not over seeds" if single else "",
    )


@dataclass(frozen=True, slots=True)
class _Fit:
    batch: float
    best: float
    draws: Array
    low_edge: float
    high_edge: float
    num_studies: int


@dataclass(frozen=True, slots=True)
class _Half:
    """The better half of a study: tuned numbers on their scales (trials, keys), and losses."""

    places: Array
    loss: Array


def _better_halves(
    trials: pd.DataFrame, numbers: dict[str, FloatDistribution | IntDistribution]
) -> list[_Half]:
    """Of each study with enough trials."""
    fewest = _FEWEST + 2 * (len(numbers) - 1)
    found: list[_Half] = []
    for _, one in trials.groupby("study", sort=False):
        half = one.nsmallest(max(fewest, (len(one) + 1) // 2), "loss")
        if len(half) >= fewest:
            scaled = [_scaled(half[key].to_numpy(dtype=float), d) for key, d in numbers.items()]
            found.append(_Half(np.stack(scaled, axis=1), half["loss"].to_numpy(dtype=float)))
    return found


def _scaled(values: Array, distribution: FloatDistribution | IntDistribution) -> Array:
    return np.log(values) if distribution.log else values


def _unscaled(values: Array, distribution: FloatDistribution | IntDistribution) -> Array:
    with np.errstate(over="ignore"):
        return np.exp(values) if distribution.log else values


def _vertices(
    halves: list[_Half], key: int, rng: np.random.Generator, draws: int
) -> tuple[float, Array]:
    """Where the fitted loss is lowest in one key, and where in bootstrap draws of it."""
    middle = np.concatenate([half.places for half in halves]).mean(axis=0)
    moments = [_moments(half.places - middle, half.loss) for half in halves]
    value = _vertex(_sum(moments), key)
    count, keys = len(halves), len(middle)
    found = np.empty(draws)
    for i in range(draws):
        if count >= _FEWEST_SEEDS:
            drawn = [moments[pick] for pick in rng.integers(count, size=count)]
        else:
            picks = [rng.integers(len(half.loss), size=len(half.loss)) for half in halves]
            drawn = [
                _moments(half.places[pick] - middle, half.loss[pick])
                for half, pick in zip(halves, picks, strict=True)
            ]
        found[i] = _vertex(_sum(drawn), key)
    size = count if count >= _FEWEST_SEEDS else sum(len(half.loss) for half in halves)
    freedom = size - 1 if count >= _FEWEST_SEEDS else max(1, size - 2 * keys - count)
    if np.isfinite(value):
        found = value + (found - value) * stretch(size, freedom)
    return value + middle[key], found + middle[key]


_Moments = tuple[Array, Array]


def _moments(places: Array, loss: Array) -> _Moments:
    """Cross products of a study's terms about their means, so that its own level drops out."""
    terms = np.concatenate([places, places**2], axis=1)
    terms = terms - terms.mean(axis=0)
    return terms.T @ terms, terms.T @ (loss - loss.mean())


def _sum(moments: list[_Moments]) -> _Moments:
    left, right = zip(*moments, strict=True)
    return np.sum(left, axis=0), np.sum(right, axis=0)


def _vertex(moments: _Moments, key: int) -> float:
    """-inf or inf if the parabola opens downwards."""
    left, right = moments
    terms = np.linalg.lstsq(left, right, rcond=None)[0]
    slope, curvature = terms[key], terms[len(terms) // 2 + key]
    if curvature <= 0:
        return -np.inf if slope > 0 else np.inf
    return float(-slope / (2 * curvature))


def regret(tuned: Tuned, rng: np.random.Generator, draws: int = 200) -> pd.DataFrame:
    """What it costs to take a rule's rate, from the best of the smallest batch, for the tuned one.

    The losses at both rates are interpolated between the trials at the nearest rates, means over
    studies where these share their rates; other tuned settings are as those trials had them.

    Args:
        tuned: studies of several batches that tuned base_lr.
        rng: of the bootstrap in `tuned_optima`.
        draws: of the same.

    Returns:
        One row per rule and batch: `rule`, `global_batch`, `peak_lr` (the rule's), `tuned_peak_lr`,
        `regret` (in units of the objective; below 0 by interpolation alone; null where the rate
        lies beyond the trials), `note`.
    """
    optima = tuned_optima(tuned, "peak_lr", rng, draws)
    rows: list[tuple[object, ...]] = []
    for rule, exponent in FIXED.items():
        for batch, best in zip(optima.batches, optima.best, strict=True):
            rate = optima.best[0] * (batch / optima.batches[0]) ** exponent
            trials = finished(tuned)
            at_batch = trials[trials["global_batch"] == batch]
            curve = at_batch.groupby("peak_lr")["loss"].mean().sort_index()
            rates = np.log(curve.index.to_numpy(dtype=float))
            losses = curve.to_numpy(dtype=float)
            inside = rates[0] <= np.log(rate) <= rates[-1]
            taken, tuned_one = np.interp(np.log([rate, best]), rates, losses)
            lost = taken - tuned_one if inside else np.nan
            note = "" if inside else "this rate lies beyond the trials"
            rows.append((rule, int(batch), float(rate), float(best), float(lost), note))
    columns = ["rule", "global_batch", "peak_lr", "tuned_peak_lr", "regret", "note"]
    return pd.DataFrame(rows, columns=columns)
