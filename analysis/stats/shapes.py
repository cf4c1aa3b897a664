"""Shapes of a response to a setting, fitted for many shifts of the batches at once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from analysis.stats.replicates import LEVEL, Array, Estimate

#: Points of less weight than this are outside the range over which a shape may bend.
_LEAST_WEIGHT = 0.01
_MOST_COLUMNS = 5
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
        return np.concatenate([shape_columns(u, columns), others], axis=2)

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


def shape_columns(u: Array, columns: int) -> Array:
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
    settings = count_settings(points)
    apart = int((weights > 0).sum()) - fitter.levels.shape[1]
    shapes: list[Shape] = []
    for columns in range(2, min(_MOST_COLUMNS, max(2, settings - 1)) + 1):
        moves = num_parameters if len(fitter.batches) > 1 else 0  # one batch has no law
        count = columns + points.others.shape[1] + moves
        freedom = apart + points.free - count - 2
        # of too few points for an interval a parabola still gives the best
        if apart < count or (freedom <= 0 and columns > 2):
            continue
        profile = fitter.profile(shifts, columns)
        best = int(profile.sums.argmin())
        size = apart + points.free
        least = max((profile.sums[best] + points.square) / size, 1e-300)
        # one more than `count`, as the variance is a parameter too
        penalty = 2 * (count + 1) * (1 + (count + 2) / freedom if freedom > 0 else 1)
        criterion = float(size * np.log(least) + penalty) + fitter.cost
        known = _variance(fitter, profile, best, apart - count)
        shapes.append(Shape(fitter, columns, criterion, best, *known, profile))
    return shapes


def count_settings(points: Points) -> int:
    """The most settings of any batch."""
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
    fitters: Sequence[Fitter], places: Array, shifts: Shifts
) -> tuple[Estimate, list[Shape], Array]:
    """A parameter of a law of shifts with its interval; the shapes and places near it.

    Args:
        fitters: of the points, each with other weights.
        places: values of the parameter, evenly spaced.
        shifts: from values, shape (values, 1), to shifts of the batches.
    """
    areas = tail_areas(fit_all_shapes(fitters, shifts(places[:, None]), 1))
    near = np.flatnonzero(areas > 1e-6)
    ends = max(near[0] - 1, 0), min(near[-1] + 1, len(places) - 1)
    close = np.linspace(places[ends[0]], places[ends[1]], len(places))
    shapes = fit_all_shapes(fitters, shifts(close[:, None]), 1)
    low, high = np.nan, np.nan
    if np.isfinite(shapes[0].variance):
        low, high = find_interval(close, tail_areas(shapes))
    best = best_shape(shapes)
    _, place = lowest(best.profile.sums[None, :], close)
    return Estimate(float(place[0]), low, high, 0, _METHOD), shapes, close


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
    with np.errstate(over="ignore"):  # no bend at all: the clip has it
        shift = np.clip(0.5 * (left - right) / bend, -1, 1) * (grid[1] - grid[0])
    return sums[rows, best], np.where(best == inner, grid[inner] + shift, grid[best])


def best_shape(shapes: Sequence[Shape]) -> Shape:
    """The shape with the lowest criterion."""
    return min(shapes, key=lambda shape: shape.criterion)
