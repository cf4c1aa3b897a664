"""The best warmup or learning rate at each batch, and how it grows with the batch."""

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from analysis.stats.batch_limits import REJECTED
from analysis.stats.replicates import DRAWS, Array, Estimate, Replicates, describe_diverged
from analysis.stats.wild import add_without, drop_wild
from analysis.tables.metric import ACCURACY, Metric

#: Added to a warmup before taking logarithms, so that a warmup of 0 has a logarithm [epochs].
WARMUP_OFFSET = 1.0

_REJECTED = "the parabola does not fit"
_SYMMETRIC = "holds if the curve is symmetric: a batch has fewer than five settings"
#: Settings of a batch from which the fit is repeated without either end.
_FEWEST_TO_CUT = 5
#: Means that differ by less than this fraction of their size are equal.
_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class Optima:
    """Where the metric is best, at each batch.

    Attributes:
        batches: global batches with enough settings to fit a parabola [examples].
        best: the vertex at each batch.
        draws: vertices of the bootstrap draws, shape (draws, batches); None without an interval.
        low_edge: smallest setting tried at each batch.
        high_edge: largest setting tried at each batch.
        num_seeds: fewest replicates of a point.
        note: points and runs that were left out, and whether the data reject the parabola.
        is_rejected: whether they do; then there are no draws.
        no_interval: why the seeds give none; empty if they do.
        draws_apart: like `draws`, for each batch's own interval, whose error comes from fewer
            points; if None, `draws` are used.
        draws_cut: like `draws`, without the smallest setting of each batch and without the
            largest: how far the estimate depends on the shape of the curve.
        wild: wild seeds in words; empty if there are none.
        without_wild: the optima without them.
    """

    batches: Array
    best: Array
    draws: Array | None
    low_edge: Array
    high_edge: Array
    num_seeds: int
    note: str
    is_rejected: bool = False
    no_interval: str = ""
    draws_apart: Array | None = None
    draws_cut: tuple[Array, ...] = ()
    wild: str = ""
    without_wild: "Optima | None" = None

    def table(self) -> pd.DataFrame:
        """A row per batch: `best`, `low`, `high`, `is_interior`, `num_seeds`, `note`."""
        rows: list[tuple[object, ...]] = []
        draws = self.draws if self.draws_apart is None else self.draws_apart
        rejected = _REJECTED if self.is_rejected else ""
        edges = zip(self.batches, self.best, self.low_edge, self.high_edge, strict=True)
        for i, (batch, best, low, high) in enumerate(edges):
            is_interior = bool(low < best < high)
            at_edge = f"the best is {high:g} or more, the largest tried"
            if best <= low:
                at_edge = f"the best is {low:g} or less, the smallest tried"
            at_edge = "" if is_interior else f"{at_edge}: extend the grid"
            if best <= low == 0:
                at_edge = "the best setting is 0, the end of its scale"
            if np.isnan(best):
                at_edge = "no setting is best: the metric is the same at all of them"
            drawn = None if draws is None else draws[:, i]
            notes = at_edge, self.no_interval, rejected
            e = Estimate.from_draws(best, drawn, self.num_seeds, "", *notes)
            e = e.widen([cut[:, i] for cut in self.draws_cut])
            if self.without_wild and self.without_wild.best[i] != best:
                without = self.without_wild.table().iloc[i]
                ends = without["best"], without["low"], without["high"]
                e = add_without(e, self.wild, Estimate(*ends, self.num_seeds, "", without["note"]))
            rows.append((int(batch), e.value, e.low, e.high, is_interior, e.num_seeds, e.note))
        columns = ["global_batch", "best", "low", "high", "is_interior", "num_seeds", "note"]
        return pd.DataFrame(rows, columns=columns)


def best_warmups(
    runs: pd.DataFrame, rng: np.random.Generator, draws: int = DRAWS, metric: Metric = ACCURACY
) -> Optima:
    """The warmup with the best metric at each batch.

    ``metric = a - c * (log(warmup + 1) - log(best + 1))**2`` by least squares at each batch, with
    c above 0 where higher is better; intervals by resampling seeds inside each point. With five
    settings at each batch or more they include those of the fits without either end of the grid:
    a curve that is steeper on one side than on the other moves the vertex.

    Uses `outcome`, `global_batch`, `warmup_epochs` and the metric.

    Returns:
        The best warmups [epochs] of batches with three or more warmups.

    Source:
        The parabola is ours: smooth, a single optimum, exact for a quadratic in log warmup.
    """
    return _fit_runs(runs, "warmup_epochs", rng, draws, metric)


def best_lrs(
    runs: pd.DataFrame,
    rng: np.random.Generator,
    draws: int = DRAWS,
    column: str = "peak_lr",
    metric: Metric = ACCURACY,
) -> Optima:
    """The peak learning rate with the best metric at each batch.

    ``metric = a - c * (log(lr) - log(best))**2`` by least squares at each batch.

    Uses `outcome`, `global_batch`, the metric and the column: the learning rate, or `lr /
    (1 - momentum)` where momentum varies.

    Returns:
        The best learning rates of batches with three or more rates.
    """
    return _fit_runs(runs, column, rng, draws, metric)


def _fit_runs(
    runs: pd.DataFrame, column: str, rng: np.random.Generator, draws: int, metric: Metric
) -> Optima:
    by = ["global_batch", column]
    cells, note = Replicates.from_runs(runs, by, metric.name).drop_single()
    found = fit_optima(cells, column, rng, draws, metric)
    notes = filter(None, [found.note, note, describe_diverged(runs)])
    found = replace(found, note="; ".join(notes))
    kept, wild = drop_wild(runs, by, metric.name)
    if not wild:
        return found
    without = _fit_runs(kept, column, rng, draws, metric)
    return replace(found, wild=wild, without_wild=without)


def fit_optima(
    cells: Replicates,
    column: str,
    rng: np.random.Generator,
    draws: int = DRAWS,
    metric: Metric = ACCURACY,
) -> Optima:
    """As `best_warmups` and `best_lrs`, for points with a `global_batch` and the column."""
    offset = WARMUP_OFFSET if column == "warmup_epochs" else 0.0
    batch = cells.points["global_batch"].to_numpy(dtype=float)
    setting = cells.points[column].to_numpy(dtype=float)
    sizes, counts = np.unique(batch, return_counts=True)
    batches = sizes[counts >= 3]
    places = [np.flatnonzero(batch == b) for b in batches]
    u = np.log(setting + offset)

    def vertices(means: Array, parts: list[NDArray[np.intp]] = places) -> Array:
        columns = [
            _vertex(u[p], metric.sign * means[:, p], cells.counts[p].astype(float)) for p in parts
        ]
        if not columns:
            return np.empty((len(means), 0))
        with np.errstate(over="ignore"):  # a vertex far beyond the grid is at infinity
            return np.maximum(np.exp(np.stack(columns, axis=1)) - offset, 0.0)

    best = vertices(cells.means[None, :])[0]
    drawn, apart, cut, note = None, None, list[Array](), ""
    if not cells.no_interval:
        note = _misfit(cells, u, places)
        if not note and places:
            together, own = (
                cells.resampled_means(rng, draws, freedom, blocks=places)
                for freedom in _freedom(cells, u, np.log(batches), places)
            )
            drawn, apart = vertices(together), vertices(own)
            cut = [vertices(together, p) for p in _cut_ends(places, setting, best) if p]
            note = "" if cut else _SYMMETRIC
    return Optima(
        batches=batches,
        best=best,
        draws=drawn,
        low_edge=np.array([setting[p].min() for p in places]),
        high_edge=np.array([setting[p].max() for p in places]),
        num_seeds=cells.num_seeds,
        note=note,
        is_rejected=note.startswith(_REJECTED),
        no_interval=cells.no_interval,
        draws_apart=apart,
        draws_cut=tuple(cut),
    )


def _cut_ends(
    places: list[NDArray[np.intp]], setting: Array, best: Array
) -> list[list[NDArray[np.intp]]]:
    """The places without the first of each batch, and without the last; none if those are few.

    An end next to which the best setting lies stays: without it there is no optimum to find.
    """
    if min(map(len, places)) < _FEWEST_TO_CUT:
        return []
    pairs = [*zip(places, best, strict=True)]
    return [
        [p[1:] if setting[p[1]] < b else p for p, b in pairs],
        [p[:-1] if setting[p[-2]] > b else p for p, b in pairs],
    ]


def _freedom(
    cells: Replicates, u: Array, x: Array, places: list[NDArray[np.intp]]
) -> tuple[float, Array]:
    """Degrees of freedom of the vertices' slope in x, and for each point of its batch's vertex."""
    gradients = np.zeros((len(places), len(u)))
    for row, place in zip(gradients, places, strict=True):
        weights = cells.counts[place].astype(float)
        design, _ = _design(u[place], weights)
        root = np.sqrt(weights)
        solve = np.linalg.pinv(design * root[:, None]) * root
        _, slope, curvature = solve @ cells.means[place]
        with np.errstate(divide="ignore", invalid="ignore"):
            row[place] = (slope * solve[2] - curvature * solve[1]) / (2 * curvature**2)
    together = cells.freedom((x - x.mean()) @ gradients, places)
    apart = np.full(len(u), together)
    for place, gradient in zip(places, gradients, strict=True):
        apart[place] = cells.freedom(gradient, places)
    return together, apart


def _misfit(cells: Replicates, u: Array, places: list[NDArray[np.intp]]) -> str:
    """Why the parabolas of all batches together are rejected; empty if they are not."""
    deviations, freedom = cells.deviations(places)
    parts = [place for place in places if len(place) > 3]
    free_fit = sum(len(place) - 3 for place in parts)
    if not free_fit:
        return ""
    sums = [float((d**2).sum()) * (len(d) - 1) / len(d) for d in deviations]
    pure = float(np.mean(np.array(sums) / (cells.counts - 1)))
    scatter = sum(_scatter(u[p], cells.means[p], cells.counts[p]) for p in parts) / free_fit
    if pure == 0:
        return ""
    f = scatter / pure
    p = float(stats.f.sf(f, free_fit, freedom))
    return f"{_REJECTED} (lack of fit F = {f:.3g}, p = {p:.2g})" if p < REJECTED else ""


def _design(u: Array, weights: Array) -> tuple[Array, float]:
    """Columns of a weighted parabola, and the center that they are relative to."""
    center = float(np.average(u, weights=weights))
    return np.stack([np.ones_like(u), u - center, (u - center) ** 2], axis=1), center


def _scatter(u: Array, means: Array, counts: NDArray[np.int64]) -> float:
    """Weighted sum of squares of the means about their parabola."""
    weights = counts.astype(float)
    design, _ = _design(u, weights)
    root = np.sqrt(weights)
    fit = np.linalg.lstsq(design * root[:, None], means * root, rcond=None)[0]
    return float((weights * (means - design @ fit) ** 2).sum())


def _vertex(u: Array, means: Array, weights: Array) -> Array:
    """Place of the maximum of a weighted parabola; infinite if it has none near the grid.

    It is nan for equal means: the sign of their slope is chance.
    """
    design, center = _design(u, weights)
    root = np.sqrt(weights)[:, None]
    _, slope, curvature = np.linalg.lstsq(design * root, (means * root.T).T, rcond=None)[0]
    with np.errstate(divide="ignore", invalid="ignore"):
        vertex = center - slope / (2.0 * curvature)
    span = u.max() - u.min()
    is_near = (curvature < 0) & (vertex > u.min() - span) & (vertex < u.max() + span)
    vertex = np.where(is_near, vertex, np.where(slope > 0, np.inf, -np.inf))
    is_flat = np.ptp(means, axis=1) <= _ROUNDING * np.abs(means).max(axis=1)
    return np.where(is_flat, np.nan, vertex)


def exponent(optima: Optima) -> Estimate:
    """How the best setting grows with the batch.

    ``log(best) = a + b * log(global_batch)``, least squares over batches; the interval of b by
    repeating the whole fit on each bootstrap draw, as in `best_warmups`.

    Returns:
        The exponent b: 0 constant, 0.5 square root, 1 linear.
    """
    method = "slope of log best on log batch; 95 % percentile bootstrap over seeds"
    if len(optima.batches) < 2:
        note = "two or more batches, each with three or more settings, are needed"
        return Estimate.from_draws(np.nan, None, optima.num_seeds, method, note)
    if optima.without_wild:
        all_seeds = exponent(replace(optima, without_wild=None))
        return add_without(all_seeds, optima.wild, exponent(optima.without_wild))
    if optima.is_rejected:
        return Estimate.from_draws(np.nan, None, optima.num_seeds, method, optima.note)
    value = _slopes(optima.batches, optima.best[None, :])[0]
    notes: list[str] = []
    table = optima.table()
    is_flat = table["best"].isna()
    for words, there in (
        ("the metric is the same at all settings", is_flat),
        ("the best is at an end of the grid, or beyond,", ~table["is_interior"] & ~is_flat),
    ):
        if there.any():
            names = ", ".join(f"{b:,}" for b in table.loc[there, "global_batch"])
            notes.append(f"{words} at batch {names}")
    drawn = None if optima.draws is None else _slopes(optima.batches, optima.draws)
    notes.append(optima.no_interval)
    if np.isfinite(value):
        notes.append(optima.note)
    found = Estimate.from_draws(value, drawn, optima.num_seeds, method, *notes)
    return found.widen([_slopes(optima.batches, cut) for cut in optima.draws_cut])


def exponent_draws(optima: Optima) -> tuple[Estimate, list[Array]]:
    """The exponent and its draws: with all settings, and without either end; none if unknown."""
    found = exponent(optima)
    if optima.draws is None or np.isnan(found.value):
        return found, []
    return found, [_slopes(optima.batches, d) for d in (optima.draws, *optima.draws_cut)]


def _slopes(batches: Array, best: Array) -> Array:
    x = np.log(batches) - np.log(batches).mean()
    with np.errstate(divide="ignore", invalid="ignore"):
        y = np.where(best > 0, np.log(best), np.nan)
        slopes = (y @ x) / (x @ x)
    return np.where(np.isfinite(slopes), slopes, np.nan)
