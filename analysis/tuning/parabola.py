"""Where the loss of tuned studies is lowest: a parabola near the optimum, and its bootstrap."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from optuna.distributions import FloatDistribution, IntDistribution
from scipy import stats

from analysis.stats.replicates import Array, stretch
from analysis.stats.target import REJECTED

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
    """Bootstrap draws, as counts of how often each replicate is drawn.

    Attributes:
        rng: source of the draws.
        draws: how many.
    """

    rng: np.random.Generator
    draws: int
    _seeds: dict[int, Array] = field(default_factory=dict)

    def of_seeds(self, count: int) -> Array:
        """Shape (draws, count); the same at every batch, as a seed's luck is in all its runs."""
        if count not in self._seeds:
            self._seeds[count] = self.of_trials(count)
        return self._seeds[count]

    def of_trials(self, count: int) -> Array:
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
    for _, one in trials.groupby(["seed", "study"], sort=True, dropna=False):
        if len(one) >= fewest:
            scaled = [scaled_by(one[key].to_numpy(dtype=float), d) for key, d in numbers.items()]
            whole.append(Half(np.stack(scaled, axis=1), one["loss"].to_numpy(dtype=float)))
    if not whole:
        return []
    middle, spread = _frame(whole)
    lowest = [_lowest(half, half.loss, fewest) for half in whole]
    left, right = _summed(lowest, middle, spread)
    slopes, curvatures = np.split(_solved(left[None], right[None])[0], 2)
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
    """Where the fitted loss is lowest in one key, and where in bootstrap draws of it.

    `key` is the index of one of the tuned numbers.

    Returns:
        The vertex and those of the draws, on the scale of the places; infinite towards the lower
        side where the parabola opens downwards.
    """
    middle, spread = _frame(halves)
    count, keys = len(halves), len(middle)
    left_sum, right_sum = _summed(halves, middle, spread)
    value = float(_vertex(left_sum[None], right_sum[None], key)[0])
    if count >= FEWEST_SEEDS:
        weights = resampler.of_seeds(count)
        left, right = zip(*(_moments(half, middle, spread) for half in halves), strict=True)
        drawn = np.tensordot(weights, np.stack(left), 1), weights @ np.stack(right)
        size, freedom = count, count - 1
    else:
        parts = [_drawn_moments(half, middle, spread, resampler) for half in halves]
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
    middle, spread = _frame(halves)
    terms: list[Array] = []
    for half in halves:
        u = (half.places - middle) / spread
        columns = np.concatenate([u**k for k in range(1, powers + 1)], axis=1)
        terms.append(columns - columns.mean(axis=0))
    design = np.concatenate(terms)
    loss = np.concatenate([half.loss - half.loss.mean() for half in halves])
    fit, _, rank, _ = np.linalg.lstsq(design, loss, rcond=None)
    return float(((loss - design @ fit) ** 2).sum()), int(rank), len(loss) - len(halves)


def scaled_by(values: Array, distribution: Number) -> Array:
    """Numbers on the scale that they were tuned on."""
    return np.log(values) if distribution.log else values


def _frame(halves: list[Half]) -> tuple[Array, Array]:
    """Middle and spread of the places, in which the fit is well conditioned."""
    places = np.concatenate([half.places for half in halves])
    spread = places.std(axis=0)
    return places.mean(axis=0), np.where(spread > 0, spread, 1.0)


def _terms(half: Half, middle: Array, spread: Array) -> Array:
    u = (half.places - middle) / spread
    return np.concatenate([u, u**2], axis=1)


def _moments(half: Half, middle: Array, spread: Array) -> tuple[Array, Array]:
    """Cross products of a study's terms about their means, so that its own level drops out."""
    terms = _terms(half, middle, spread)
    terms = terms - terms.mean(axis=0)
    return terms.T @ terms, terms.T @ (half.loss - half.loss.mean())


def _drawn_moments(
    half: Half, middle: Array, spread: Array, resampler: Resampler
) -> tuple[Array, Array]:
    """The same for trials drawn with replacement, shapes (draws, terms, terms), (draws, terms)."""
    terms, loss = _terms(half, middle, spread), half.loss - half.loss.mean()
    weights = resampler.of_trials(len(loss))
    mean = weights @ terms / len(loss)
    products = terms[:, :, None] * terms[:, None, :]
    left: Array = (
        np.tensordot(weights, products, 1) - len(loss) * mean[:, :, None] * mean[:, None, :]
    )
    right = weights @ (terms * loss[:, None]) - mean * (weights @ loss)[:, None]
    return left, right


def _summed(halves: list[Half], middle: Array, spread: Array) -> tuple[Array, Array]:
    left, right = zip(*(_moments(half, middle, spread) for half in halves), strict=True)
    return np.sum(left, axis=0), np.sum(right, axis=0)


def _solved(left: Array, right: Array) -> Array:
    """Least squares from moments, shape (draws, terms)."""
    return (np.linalg.pinv(left, rcond=1e-12, hermitian=True) @ right[..., None])[..., 0]


def _vertex(left: Array, right: Array, key: int) -> Array:
    """-inf or inf if the parabola opens downwards."""
    terms = _solved(left, right)
    slope, curvature = terms[:, key], terms[:, terms.shape[1] // 2 + key]
    with np.errstate(divide="ignore", invalid="ignore"):
        lowest = -slope / (2 * curvature)
    return np.where(curvature > 0, lowest, np.where(slope > 0, -np.inf, np.inf))
