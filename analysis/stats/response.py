"""One response to a setting for all batches, and how its best moves with the batch.

``value = level of the group + shape(place - shift(batch)) + noise``: the shape is common to all
batches, and a law such as ``exponent * log(batch)`` says where it lies. So every run of a study
tells where the best is at every batch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.linalg import null_space

from analysis.stats.places import lowest
from analysis.stats.replicates import LEVEL, Array, Estimate, student_factor

#: Exponents that are searched; each law is searched in this many places, twice.
EXPONENTS = np.linspace(-2.0, 3.0, 101)
#: How far a point may depart from the common shape: a fraction of what it lies below the best.
_DEPARTURES = (0.0, 0.05, 0.15, 0.4, 1.0)
#: How far the steepness of a response of three settings is unknown.
_UNKNOWN_SLOPE = 0.25
_ROUNDS = 3  # in which weights and bounds settle
#: What is smaller than this fraction of the metric's range is rounding.
_ROUNDING = 1e-6
#: Points of less weight than this are outside the range over which a shape may bend.
_LEAST_WEIGHT = 0.01
_MOST_COLUMNS = 5
_PLACES = np.linspace(-1.0, 1.0, 241)
#: The common shape, and the law, are rejected if their p value is smaller than this.
_REJECTED, _OFF_LAW = 0.001, 0.05
_TOO_FAR = 4.0  # errors by which the best setting may be behind another
#: From values of a parameter, shape (values, 1), to shifts of the batches, shape (values, batches).
Shifts = Callable[[Array], Array]

_METHOD = "one response for all batches, shifted; 95 % profile interval, averaged over shapes"


@dataclass(frozen=True, slots=True)
class Points:
    """Points of a study with their metric.

    Attributes:
        batches: of each point [examples].
        places: the setting on the scale of its response, such as the logarithm of a rate.
        measured: the metric, more is better; of a point with a bound, what it is at most.
        counts: replicates behind each value.
        groups: from 0; points that share a level, such as those of a batch or a study.
        is_bound: whether the value is only a bound, as runs diverged there.
        square: sum of squares of the replicates about the values.
        free: its degrees of freedom; 0 without replicates.
        others: further settings, in which the response is linear, shape (points, settings).
        offset: added to settings before their logarithms are taken; 0 for rates.
    """

    batches: Array
    places: Array
    measured: Array
    counts: Array
    groups: NDArray[np.intp]
    is_bound: NDArray[np.bool_]
    square: float
    free: float
    others: Array
    offset: float = 0.0

    def keep(self, kept: NDArray[np.bool_]) -> "Points":
        """Some of the points."""
        of = {name: getattr(self, name)[kept] for name in _OF_POINTS}
        return replace(self, **of, groups=np.unique(self.groups[kept], return_inverse=True)[1])


_OF_POINTS = ("batches", "places", "measured", "counts", "is_bound", "others")


@dataclass(frozen=True, slots=True)
class Profile:
    """Fits of one shape for many shifts.

    Attributes:
        shifts: of the batches, shape (shifts, batches).
        sums: weighted sums of squares, shape (shifts,).
        basis: orthonormal columns, shape (shifts, points, columns).
        solve: from the projections on these to coefficients, shape (shifts, columns, columns).
        middle: of the places less their shifts, shape (shifts,).
        half: half their range, shape (shifts,).
    """

    shifts: Array
    sums: Array
    basis: Array
    solve: Array
    middle: Array
    half: Array


@dataclass(frozen=True)
class Fitter:
    """Least squares of shapes for many shifts at once.

    Attributes:
        points: with values.
        weights: inverse variances, in those of a replicate; 0 for a bound that holds.
    """

    points: Points
    weights: Array

    @cached_property
    def batches(self) -> Array:
        """Each once, ascending [examples]."""
        return np.unique(self.points.batches)

    @cached_property
    def x(self) -> Array:
        """Logarithms of the batches about their mean."""
        return np.log(self.batches) - np.log(self.batches).mean()

    @cached_property
    def levels(self) -> Array:
        """Orthonormal columns of the groups' levels, shape (points, groups)."""
        each = np.eye(self.points.groups.max() + 1)[self.points.groups]
        columns = each * np.sqrt(self.weights)[:, None]
        return columns / np.maximum(np.linalg.norm(columns, axis=0), 1e-300)

    @cached_property
    def cost(self) -> float:
        """What the weights cost in twice the restricted log likelihood, against equal ones."""
        is_in, counts = self.weights > 0, self.points.counts
        groups = self.points.groups[is_in]
        levels = np.bincount(groups, self.weights[is_in]) / np.bincount(groups, counts[is_in])
        shares = (self.weights / counts)[is_in]
        return float(np.log(levels[levels > 0]).sum() - np.log(shares).sum())

    def residuals(self, values: Array) -> Array:
        """Weighted values without the levels of their groups, shape (points, ...)."""
        rooted = (values.T * np.sqrt(self.weights)).T
        return rooted - self.levels @ (self.levels.T @ rooted)

    @property
    def members(self) -> list[NDArray[np.intp]]:
        """The points of each batch."""
        return [np.flatnonzero(self.points.batches == batch) for batch in self.batches]

    @cached_property
    def index(self) -> NDArray[np.intp]:
        """The place of each point's batch among the batches."""
        return np.searchsorted(self.batches, self.points.batches)

    def design(self, shifts: Array, middle: Array, half: Array, columns: int) -> Array:
        """Columns of the shape, in places from -1 to 1, and the other settings."""
        u = self.points.places - shifts[:, self.index]
        u = (u - middle[:, None]) / half[:, None]
        others = np.broadcast_to(self.points.others, (*u.shape, self.points.others.shape[1]))
        return np.concatenate([_shape(u, columns), others], axis=2)

    def profile(self, shifts: Array, columns: int) -> Profile:
        """Fit a shape of so many columns for each row of shifts."""
        is_seen = self.weights > _LEAST_WEIGHT * self.points.counts
        seen = (self.points.places - shifts[:, self.index])[:, is_seen]
        low, high = seen.min(axis=1), seen.max(axis=1)
        middle, half = (low + high) / 2, np.maximum((high - low) / 2, 1e-12)
        design = self.design(shifts, middle, half, columns) * np.sqrt(self.weights)[:, None]
        design = design - self.levels @ (self.levels.T @ design)
        basis, sizes, rows = np.linalg.svd(design, full_matrices=False)
        is_apart = sizes > 1e-7 * sizes[:, :1]
        basis = basis * is_apart[:, None, :]
        inverse = np.where(is_apart, 1 / np.where(is_apart, sizes, 1), 0)
        values = self.residuals(self.points.measured)
        sums = values @ values - ((values @ basis) ** 2).sum(axis=1)
        solve = np.swapaxes(rows, 1, 2) * inverse[:, None, :]
        return Profile(shifts, np.maximum(sums, 0.0), basis, solve, middle, half)

    def coefficients(self, profile: Profile, i: int) -> Array:
        """Of the columns of a shape and the other settings, at the shift i."""
        return profile.solve[i] @ (self.residuals(self.points.measured) @ profile.basis[i])


def _shape(u: Array, columns: int) -> Array:
    """Columns of a parabola, or of a natural cubic spline, in places from -1 to 1.

    Source:
        Hastie, Tibshirani & Friedman 2009, The Elements of Statistical Learning, section 5.2.1.
    """
    if columns == 2:
        return np.stack([u, u**2], axis=-1)
    knots = np.linspace(-0.84, 0.84, columns + 1)
    cubes = np.maximum(u[..., None] - knots, 0.0) ** 3
    bends = (cubes[..., :-1] - cubes[..., -1:]) / (knots[-1] - knots[:-1])
    return np.concatenate([u[..., None], bends[..., :-1] - bends[..., -1:]], axis=-1)


@dataclass(frozen=True, slots=True)
class Shape:
    """How well a shape fits with the best of a family of shifts.

    Attributes:
        fitter: of the points, with their weights.
        columns: of the shape.
        criterion: Akaike's, corrected for few points, by restricted likelihood.
        best: which of the shifts.
        variance: of a replicate, from replicates and departures, or from these if they are larger;
            nan if nothing tells.
        free: its degrees of freedom.
        misfit: p value of the departures, if they are no larger than replicates tell; 1 without.
        profile: over the shifts.
    """

    fitter: Fitter
    columns: int
    criterion: float
    best: int
    variance: float
    free: float
    misfit: float
    profile: Profile


def fit_shapes(fitter: Fitter, shifts: Array, num_parameters: int = 1) -> list[Shape]:
    """Fit all shapes that the settings of a batch allow, for a family of shifts.

    Args:
        fitter: of the points.
        shifts: of the batches, shape (shifts, batches).
        num_parameters: of the family.
    """
    points, weights = fitter.points, fitter.weights
    settings = _most_settings(points)
    apart = int((weights > 0).sum()) - fitter.levels.shape[1]
    shapes: list[Shape] = []
    for columns in range(2, min(_MOST_COLUMNS, max(2, settings - 1)) + 1):
        moves = num_parameters if len(fitter.batches) > 1 else 0
        count = columns + points.others.shape[1] + moves
        freedom = apart + points.free - count - 2
        if apart < count or (freedom <= 0 and columns > 2):
            continue
        profile = fitter.profile(shifts, columns)
        best = int(profile.sums.argmin())
        size = apart + points.free
        least = max((profile.sums[best] + points.square) / size, 1e-300)
        penalty = 2 * (count + 1) * (1 + (count + 2) / freedom if freedom > 0 else 1)
        criterion = float(size * np.log(least) + penalty) + fitter.cost
        known = _variance(fitter, profile, best, apart - count)
        shapes.append(Shape(fitter, columns, criterion, best, *known, profile))
    return shapes


def _most_settings(points: Points) -> int:
    """At any batch."""
    pairs = np.unique(np.stack([points.batches, points.places]), axis=1)
    return int(np.unique(pairs[0], return_counts=True)[1].max())


def _variance(fitter: Fitter, profile: Profile, best: int, free: int) -> tuple[float, float, float]:
    """Variance of a replicate, its degrees of freedom, and the p value of the departures.

    Departures count by the squares of their weights: those of points that may depart are large.
    """
    points, weights = fitter.points, fitter.weights
    pure = points.square / points.free if points.free else np.nan
    if free < 1:
        return pure, points.free, 1.0
    values = fitter.residuals(points.measured)
    rest = values - profile.basis[best] @ (values @ profile.basis[best])
    share = weights / points.counts
    left = (weights > 0) - (fitter.levels**2).sum(axis=1) - (profile.basis[best] ** 2).sum(axis=1)
    per_free = free / max(left.sum(), 1e-9)
    apart = float((share * rest**2).sum() / max((share**2 * left).sum() * per_free, 1e-300))
    misfit = float(stats.f.sf(apart / pure, free, points.free)) if pure > 0 else 1.0
    together = (apart * free + points.square) / (free + points.free)
    if apart > together:
        return apart, free, misfit
    return together, free + points.free, misfit


def share_weights(shapes: list[Shape]) -> Array:
    """Akaike's weights; they sum to 1.

    Source:
        Burnham & Anderson 2002, Model Selection, section 2.9.
    """
    scores = np.array([shape.criterion for shape in shapes])
    weights = np.exp((scores.min() - scores) / 2)
    return weights / weights.sum()


def tail_areas(shapes: list[Shape]) -> Array:
    """P value of each of the shifts against the best one, averaged over shapes.

    Source:
        Turek & Fletcher 2012, Computational Statistics and Data Analysis 56, 2809-2815.
    """
    areas = np.zeros(len(shapes[0].profile.sums))
    for shape, weight in zip(shapes, share_weights(shapes), strict=True):
        sums = shape.profile.sums
        variance = float(np.nanmax([shape.variance, 1e-300]))
        distance = np.sqrt(np.maximum(sums - sums[shape.best], 0.0) / variance)
        areas += weight * 2 * stats.t.sf(distance, max(shape.free, 1))
    return areas


def find_interval(places: Array, areas: Array) -> tuple[float, float]:
    """Where the p value is above 5 %, between places; infinite where that is an end of them."""
    is_in = np.flatnonzero(areas > 1 - LEVEL)
    logs = np.log(np.maximum(areas, 1e-300))

    def cross(inside: int, outside: int) -> float:
        if not 0 <= outside < len(places):
            return np.inf * (outside - inside)
        share = (logs[inside] - np.log(1 - LEVEL)) / (logs[inside] - logs[outside])
        return float(places[inside] + share * (places[outside] - places[inside]))

    return cross(is_in[0], is_in[0] - 1), cross(is_in[-1], is_in[-1] + 1)


def fit_all_shapes(fitters: Sequence[Fitter], shifts: Array, num_parameters: int) -> list[Shape]:
    """Fit all shapes with all weights, as `fit_shapes` does with one."""
    return [shape for fitter in fitters for shape in fit_shapes(fitter, shifts, num_parameters)]


def search_law(
    fitters: Sequence[Fitter], places: Array, shifts: Shifts, num_parameters: int = 1
) -> tuple[Estimate, list[Shape], Array]:
    """A parameter of a law of shifts with its interval; the shapes and places near it.

    Args:
        fitters: of the points, each with other weights.
        places: values of the parameter, evenly spaced.
        shifts: from values, shape (values, 1), to shifts of the batches.
        num_parameters: of the law.
    """
    areas = tail_areas(fit_all_shapes(fitters, shifts(places[:, None]), num_parameters))
    near = np.flatnonzero(areas > 1e-6)
    ends = max(near[0] - 1, 0), min(near[-1] + 1, len(places) - 1)
    close = np.linspace(places[ends[0]], places[ends[1]], len(places))
    shapes = fit_all_shapes(fitters, shifts(close[:, None]), num_parameters)
    low, high = np.nan, np.nan
    if np.isfinite(shapes[0].variance):
        low, high = find_interval(close, tail_areas(shapes))
    best = best_shape(shapes)
    _, place = lowest(best.profile.sums[None, :], close)
    return Estimate(float(place[0]), low, high, 0, _METHOD), shapes, close


@dataclass(frozen=True, slots=True)
class Response:
    """A common response, and where it lies at each batch.

    Attributes:
        fitter: of the points, with their weights.
        fitters: with all weights that may be right.
        shapes: near the best exponents.
        places: those exponents.
        law: of the power.
        exponent: of the best setting over the batch.
        moved: how far the shape is moved at each batch.
        best: where the response is best at each batch; infinite beyond the places that were run.
        draws: the same in draws from the fit, shape (draws, batches).
        exponents: of the draws, shape (draws,).
        fit: the fitted metric of each point, up to its group's level.
        misfit: p value of the common shape.
    """

    fitter: Fitter
    fitters: Sequence[Fitter]
    shapes: list[Shape]
    places: Array
    law: Shifts
    exponent: Estimate
    moved: Array
    best: Array
    draws: Array
    exponents: Array
    fit: Array
    misfit: float

    @property
    def batches(self) -> Array:
        """Of the points, each once [examples]."""
        return self.fitter.batches

    @property
    def shape(self) -> Shape:
        """The one that fits best."""
        return best_shape(self.shapes)

    @property
    def variance(self) -> float:
        """Of a replicate."""
        return self.shape.variance

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
        columns = _shape((u - profile.middle[i]) / profile.half[i], shape.columns)
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
        if self.misfit < _REJECTED:
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
    for _ in range(_ROUNDS if points.offset else 0):
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
        moved, best, drawn = (
            moved + off,
            best + off,
            drawn + off + error * rng.standard_normal(drawn.shape),
        )
        exponent = _scatter_interval(exponent, off, shape.fitter.x, p)
    if _most_settings(points) == 3 and len(shape.fitter.batches) > 1:
        exponent = _stretch_from_grid(exponent, shape.fitter)
    return Response(
        shape.fitter, fitters, shapes, places, law, exponent, moved, best, drawn, exponents,
        _values(shape), shape.misfit,
    )  # fmt: skip


def best_shape(shapes: Sequence[Shape]) -> Shape:
    """The shape with the lowest criterion."""
    return min(shapes, key=lambda shape: shape.criterion)


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
    shifts = law(EXPONENTS[::4, None])
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
    heights = _shape(_PLACES, shape.columns) @ coefficients[: shape.columns]
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
    least: list[NDArray[np.intp]] = []
    scores: list[Array] = []
    rooted: list[Array] = []
    for shape in shapes:
        own = shape.fitter
        size = int((own.weights > 0).sum()) - own.levels.shape[1] + points.free
        drawn = own.residuals(raw)
        projected = (np.swapaxes(shape.profile.basis, 1, 2) @ drawn) ** 2
        sums = np.maximum((drawn**2).sum(axis=0) - projected.sum(axis=1), 0.0) + points.square
        seen = max(float(shape.profile.sums[shape.best] + points.square), 1e-300)
        least.append(sums.argmin(axis=0))
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
