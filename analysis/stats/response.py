"""One response to a setting for all batches, and how its best moves with the batch.

``value = level of the group + shape(place - shift(batch)) + noise``: the shape is common to all
batches, and a law such as ``exponent * log(batch)`` says where it lies. So every run of a study
tells where the best is at every batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.linalg import null_space

from analysis.stats.replicates import LEVEL, Array, Estimate, student_factor
from analysis.stats.shapes import (
    Fitter,
    Points,
    Shape,
    Shifts,
    best_shape,
    count_settings,
    find_interval,
    fit_shapes,
    lowest,
    search_law,
    shape_columns,
    share_weights,
    tail_areas,
)

#: Exponents that are searched.
EXPONENTS = np.linspace(-2.0, 3.0, 101)
#: How far a point may depart from the common shape: a fraction of what it lies below the best.
_DEPARTURES = (0.0, 0.05, 0.15, 0.4, 1.0)
#: How far the steepness of a response of three settings is unknown.
_UNKNOWN_SLOPE = 0.5
_ROUNDS = 3  # in which weights and bounds settle
#: What is smaller than this fraction of the metric's range is rounding.
_ROUNDING = 1e-6
_PLACES = np.linspace(-1.0, 1.0, 241)
#: The common shape, and the law, are rejected if their p value is smaller than this.
_REJECTED, _OFF_LAW = 0.001, 0.05
_UNLIKELY, _STEP = 1e-3, 3  # shapes and places that are left out of draws
_TOO_FAR = 4.0  # errors by which the best setting may be behind another


@dataclass(frozen=True)
class Response:
    """A common response, and where it lies at each batch.

    Attributes:
        fitters: of the points, with all weights that may be right.
        shapes: near the best exponents.
        places: those exponents.
        law: of the power.
        exponent: of the best setting over the batch.
        moved: how far the shape is moved at each batch.
        best: where the response is best at each batch; infinite beyond the places that were run.
        draws: the same in draws from the fit, shape (draws, batches).
        exponents: of the draws, shape (draws,).
    """

    fitters: Sequence[Fitter]
    shapes: list[Shape]
    places: Array
    law: Shifts
    exponent: Estimate
    moved: Array
    best: Array
    draws: Array
    exponents: Array

    @property
    def shape(self) -> Shape:
        """The one that fits best."""
        return best_shape(self.shapes)

    @property
    def fitter(self) -> Fitter:
        """Of the best shape."""
        return self.shape.fitter

    @property
    def batches(self) -> Array:
        """Of the points, each once [examples]."""
        return self.fitter.batches

    @cached_property
    def fit(self) -> Array:
        """The fitted metric of each point, up to its group's level."""
        return _values(self.shape)

    def refit(self, values: Array) -> Array:
        """Fit the best shape, where it lies, to other values, shape (points, draws)."""
        root = np.sqrt(np.maximum(self.fitter.weights, 1e-300))[:, None]
        basis = self.shape.profile.basis[self.shape.best]
        basis = np.concatenate([self.fitter.levels, basis], axis=1)
        return basis @ (basis.T @ (root * values)) / root

    def curve(self, batch: float, places: Array) -> Array:
        """The fitted metric of a batch in places of the setting, more is better."""
        shape, points, k = self.shape, self.fitter.points, int(self.batches.searchsorted(batch))
        profile, i, here = shape.profile, shape.best, self.fitter.members[k]
        u = np.concatenate([points.places[here], places]) - self.moved[k]
        columns = shape_columns((u - profile.middle[i]) / profile.half[i], shape.columns)
        heights = columns @ self.fitter.coefficients(profile, i)[: shape.columns]
        weights = np.maximum(self.fitter.weights[here], 1e-9)  # were all of a batch bounds
        level = np.average(points.measured[here] - heights[: len(here)], weights=weights)
        return heights[len(here) :] + level

    def chance_of(self, exponent: float) -> float:
        """P value of an exponent; as much wider than the profile as the interval is."""
        areas, found = tail_areas(self.shapes), self.exponent
        at, side = found.value, int(exponent > found.value)
        wide = (found.low, found.high)[side] - at
        if np.isfinite(wide) and wide:
            narrow = find_interval(self.places, areas)[side] - at
            exponent = at + (exponent - at) * narrow / wide
        return float(np.interp(exponent, self.places, areas, 0.0, 0.0))

    @property
    def is_rejected(self) -> bool:
        """Whether one shape does not fit all batches, or puts a best where another is measured."""
        if self.shape.misfit < _REJECTED:
            return True
        points = self.fitter.points
        if not points.free:
            return False
        error = np.sqrt(points.square / points.free / points.counts)
        for here in self.fitter.members:
            known = here[~points.is_bound[here]]
            chosen, highest = (known[of[known].argmax()] for of in (self.fit, points.measured))
            behind = points.measured[highest] - points.measured[chosen]
            if behind > _TOO_FAR * np.hypot(error[highest], error[chosen]):
                return True
        return False


def fit_response(points: Points, rng: np.random.Generator, draws: int) -> Response | None:
    """Fit one response to all points; None if there are too few.

    Points far below the best say little about it and may depart from the common shape: by a
    fraction of what they lie below, which the points themselves choose (restricted likelihood). A
    bound counts where the fit exceeds it.

    Where the batches lie off the power of the batch by more than noise, each has its own place, and
    the exponent's interval is from their scatter.
    """
    at = float(np.median(points.places))
    law = _law(points, at)
    settled = [_settle(points, law, departure) for departure in _DEPARTURES]
    fitters = [f for f in settled if f and fit_shapes(f, law(EXPONENTS[:1, None]))]
    if not fitters:
        return None
    exponent, shapes, places = search_law(fitters, EXPONENTS, law)
    for _ in range(_ROUNDS if points.offset else 0):  # the law needs the best, and the best the law
        best = _best_places(shapes, law, exponent.value)
        at = float(np.clip(best.mean(), points.places.min(), points.places.max()))
        law = _law(points, at)
        exponent, shapes, places = search_law(fitters, EXPONENTS, law)
    shape, best = best_shape(shapes), _best_places(shapes, law, exponent.value)
    moved = law(np.array([[exponent.value]]))[0]
    tops, exponents = _draw_tops(shapes, places, rng, draws)
    drawn = tops[:, None] + law(exponents[:, None])
    off, error, p = _find_departures(shape)
    if p < _OFF_LAW:
        moved, best = moved + off, best + off
        drawn = drawn + off + error * rng.standard_normal(drawn.shape)
        exponent = _scatter_interval(exponent, off, shape.fitter.x, p)
    if count_settings(points) == 3 and len(shape.fitter.batches) > 1:
        exponent = _stretch_from_grid(exponent, shape.fitter)
    return Response(fitters, shapes, places, law, exponent, moved, best, drawn, exponents)


def _best_places(shapes: Sequence[Shape], law: Shifts, exponent: float) -> Array:
    shape = best_shape(shapes)
    coefficients = shape.fitter.coefficients(shape.profile, shape.best)[:, None]
    return _find_tops(shape, shape.best, coefficients) + law(np.array([[exponent]]))[0]


def _scatter_interval(exponent: Estimate, off: Array, x: Array, p: float) -> Estimate:
    """An exponent with the interval of the batches' scatter about the law, if that is wider."""
    free = len(off) - 2
    half = stats.t.ppf(0.5 + LEVEL / 2, free) * np.sqrt((off @ off) / free / (x @ x))
    low, high = min(exponent.low, exponent.value - half), max(exponent.high, exponent.value + half)
    note = f"batches lie off the power law (p = {p:.2g}): the interval is from their scatter"
    return replace(exponent, low=float(low), high=float(high), note=note)


def _stretch_from_grid(exponent: Estimate, fitter: Fitter) -> Estimate:
    """An interval wider by a share of how far the best moves otherwise than the grid does.

    Three settings do not tell how steep the response is beside them, only whether it moves.
    """
    means = np.bincount(fitter.index, fitter.points.places) / np.bincount(fitter.index)
    apart = _UNKNOWN_SLOPE * abs(exponent.value - (fitter.x @ means) / (fitter.x @ fitter.x))
    return replace(exponent, low=exponent.low - apart, high=exponent.high + apart)


def _law(points: Points, at: float) -> Shifts:
    """Shifts by which the best setting grows as a power of the batch.

    Where an offset is added to settings, they depend on where the best is on the scale of places,
    on average over batches.
    """
    batches = np.unique(points.batches)
    x = np.log(batches) - np.log(batches).mean()
    if not points.offset:
        return lambda p: p * x
    best = max(np.exp(at) - points.offset, 1e-3)
    return lambda p: np.log((points.offset + best * np.exp(p * x)) / (points.offset + best))


def _settle(points: Points, law: Shifts, departure: float) -> Fitter | None:
    """Weights of points that may depart from the common shape by a fraction; None if too few."""
    weights = np.where(points.is_bound, 0.0, points.counts)
    least = (_ROUNDING * np.ptp(points.measured)) ** 2
    highest = np.full(points.groups.max() + 1, -np.inf)
    np.maximum.at(highest, points.groups, points.measured)
    below = points.measured - highest[points.groups]
    # A shape that must pass through what is far below would be bad everywhere.
    middle = departure * float(np.median(below))
    if variance := points.square / points.free if points.free else middle**2:
        weights = weights / _share_of_departures(points, below, departure, variance)
    fitter = Fitter(points, weights)
    shifts = law(EXPONENTS[::4, None])  # coarse: only weights follow from it
    for _ in range(_ROUNDS if departure or points.is_bound.any() else 1):
        if not (shapes := fit_shapes(fitter, shifts)):
            return None
        shape = best_shape(shapes)
        fit, variance = _values(shape), float(np.nanmax([shape.variance, least]))
        level = np.bincount(points.groups, fitter.weights * (points.measured - fit))
        level = level / np.maximum(np.bincount(points.groups, fitter.weights), 1e-300)
        measured, noise = points.measured - level[points.groups], np.sqrt(variance / points.counts)
        seen = np.minimum(fit, measured + 3 * noise)  # the fit may miss what is far below
        weights = points.counts / _share_of_departures(points, seen, departure, variance)
        holds = points.is_bound & (fit <= measured)
        fitter = Fitter(points, np.where(holds, 0.0, weights))
    return fitter


def _share_of_departures(points: Points, fit: Array, departure: float, variance: float) -> Array:
    """By what the variance of each point grows as it may depart from the shape."""
    index = np.unique(points.batches, return_inverse=True)[1]
    highest = np.full(index.max() + 1, -np.inf)
    np.maximum.at(highest, index, fit)
    return 1 + points.counts * (departure * (highest[index] - fit)) ** 2 / variance


def _values(shape: Shape) -> Array:
    """The fitted metric of every point, up to its group's level; bounds that hold too."""
    fitter, profile, i = shape.fitter, shape.profile, shape.best
    at = [part[i : i + 1] for part in (profile.shifts, profile.middle, profile.half)]
    return fitter.design(at[0], at[1], at[2], shape.columns)[0] @ fitter.coefficients(profile, i)


def _find_tops(shape: Shape, i: int, coefficients: Array) -> Array:
    """Where shapes are highest, less the shift i; infinite at an end of the places.

    Args:
        shape: of the columns.
        i: the shift of all.
        coefficients: shape (columns, shapes).
    """
    heights = shape_columns(_PLACES, shape.columns) @ coefficients[: shape.columns]
    _, place = lowest(-heights.T, _PLACES)
    is_end = heights.argmax(axis=0)
    place = np.where(is_end == 0, -np.inf, np.where(is_end == len(_PLACES) - 1, np.inf, place))
    return place * shape.profile.half[i] + shape.profile.middle[i]


def _draw_tops(
    shapes: list[Shape], places: Array, rng: np.random.Generator, draws: int
) -> tuple[Array, Array]:
    """Tops and exponents of fits to drawn values; the shape is chosen anew for each.

    The values are those of the best shape with normal noise, stretched by Student's factor.
    """
    best = best_shape(shapes)
    if not np.isfinite(best.variance):
        return np.full(draws, np.nan), np.full(draws, np.nan)
    fitter, basis = best.fitter, best.profile.basis[best.best]
    points, root = fitter.points, np.sqrt(np.maximum(fitter.weights, 1e-300))
    values = fitter.residuals(points.measured)
    noise = np.sqrt(best.variance) * student_factor(best.free)
    noise = noise * rng.standard_normal((len(values), draws)) * (fitter.weights > 0)[:, None]
    raw = ((basis @ (basis.T @ values))[:, None] + noise) / root[:, None]
    weights = share_weights(shapes)
    shapes = [shape for shape, weight in zip(shapes, weights, strict=True) if weight > _UNLIKELY]
    least: list[NDArray[np.intp]] = []
    scores: list[Array] = []
    rooted: list[Array] = []
    for shape in shapes:
        own = shape.fitter
        size = int((own.weights > 0).sum()) - own.levels.shape[1] + points.free
        drawn = own.residuals(raw)
        every = shape.profile.basis[::_STEP]  # places lie far closer than draws scatter
        projected = (np.swapaxes(every, 1, 2) @ drawn) ** 2
        sums = np.maximum((drawn**2).sum(axis=0) - projected.sum(axis=1), 0.0) + points.square
        seen = max(float(shape.profile.sums[shape.best] + points.square), 1e-300)
        least.append(_STEP * sums.argmin(axis=0))
        # the criterion of the drawn values: only their sum of squares differs
        scores.append(size * np.log(np.maximum(sums.min(axis=0), 1e-300) / seen) + shape.criterion)
        rooted.append(drawn)
    chosen = np.argmin(scores, axis=0)
    tops, exponents = np.empty(draws), np.empty(draws)
    for k, shape in enumerate(shapes):
        at = np.where(chosen == k, least[k], -1)
        for i in np.unique(at[at >= 0]):
            here = at == i
            solved = shape.profile.solve[i] @ (shape.profile.basis[i].T @ rooted[k][:, here])
            tops[here], exponents[here] = _find_tops(shape, int(i), solved), places[i]
    return tops, exponents


def _find_departures(shape: Shape) -> tuple[Array, Array, float]:
    """How far each batch lies off the law, the errors of that, and the p value of the law.

    One step of Gauss and Newton; what lies off is at right angles to the law.
    """
    fitter, profile, i = shape.fitter, shape.profile, shape.best
    num_batches = len(fitter.batches)
    if num_batches < 3 or not np.isfinite(shape.variance):
        return np.zeros(num_batches), np.zeros(num_batches), np.nan
    step, half = 1e-4, profile.half[i : i + 1]
    at = profile.shifts[i : i + 1], profile.middle[i : i + 1]
    ends = [
        fitter.design(at[0], at[1] + side * step * half, half, shape.columns)[0] for side in (1, -1)
    ]
    slopes = (ends[0] - ends[1]) @ fitter.coefficients(profile, i) / (2 * step * half)
    # a shift of all batches is the shape's own place, one along x the exponent
    free_of_law = null_space(np.stack([np.ones(num_batches), fitter.x]))
    columns = slopes[:, None] * free_of_law[fitter.index]
    columns = fitter.residuals(columns)
    columns -= profile.basis[i] @ (profile.basis[i].T @ columns)
    values = fitter.residuals(fitter.points.measured)
    inverse = np.linalg.pinv(columns.T @ columns, rcond=1e-9, hermitian=True)
    found = inverse @ (columns.T @ values)
    count = num_batches - 2
    ratio = float(found @ (columns.T @ columns) @ found) / count / max(shape.variance, 1e-300)
    spread = np.einsum("ij,jk,ik->i", free_of_law, inverse, free_of_law)
    errors = np.sqrt(shape.variance * np.maximum(spread, 0.0))
    return free_of_law @ found, errors, float(stats.f.sf(ratio, count, shape.free))
