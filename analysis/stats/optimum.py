"""The best warmup or learning rate at each batch, and how it grows with the batch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from analysis.stats.replicates import (
    DRAWS,
    REJECTED,
    Array,
    Estimate,
    Replicates,
    format_share,
)
from analysis.stats.response import Fitter, Points, Response, fit_response
from analysis.stats.wild import add_without, drop_wild
from analysis.tables.metric import ACCURACY, Metric

#: Added to a warmup before taking logarithms, so that a warmup of 0 has a logarithm [epochs].
WARMUP_OFFSET = 1.0

_REJECTED = "the parabola does not fit"
_SYMMETRIC = "holds if the curve is symmetric: a batch has fewer than five settings"
FEWEST_SETTINGS = 3  # of a batch, to tell where the best is
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
        draws_cut: like `draws`, of other fits, or ends: how far the best depends on the shape.
        response: one response for all batches; None where each batch answers for itself.
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
    response: Response | None = None
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


def best_settings(
    runs: pd.DataFrame,
    column: str,
    rng: np.random.Generator,
    draws: int = DRAWS,
    metric: Metric = ACCURACY,
    others: Sequence[str] = (),
) -> Optima:
    """The setting with the best metric at each batch, and how it moves with the batch.

    One response in the logarithm of the setting (of the warmup + 1 epoch) for all batches:
    `fit_response`. Where one shape does not fit all of them, a parabola at each batch, with seeds
    resampled inside each point. Intervals of a batch's best include those of fits without either
    end of the grid: the shape moves it.

    Uses `outcome`, `global_batch`, the metric, the column, and others that vary besides.

    Returns:
        The best settings of batches with three or more of them.
    """
    by = ["global_batch", column, *others]
    cells = Replicates.from_runs(runs, by, metric.name)
    lost = runs[runs["outcome"] == "diverged"].groupby(by).size()
    found = fit_optima(cells, column, rng, draws, metric, lost, others)
    kept, wild = drop_wild(runs, by, metric.name)
    if not wild:
        return found
    without = best_settings(kept, column, rng, draws, metric, others)
    return replace(found, wild=wild, without_wild=without)


def best_warmups(
    runs: pd.DataFrame, rng: np.random.Generator, draws: int = DRAWS, metric: Metric = ACCURACY
) -> Optima:
    """`best_settings` of the warmup [epochs]."""
    return best_settings(runs, "warmup_epochs", rng, draws, metric)


def best_lrs(
    runs: pd.DataFrame,
    rng: np.random.Generator,
    draws: int = DRAWS,
    column: str = "peak_lr",
    metric: Metric = ACCURACY,
) -> Optima:
    """`best_settings` of the learning rate, or of `lr / (1 - momentum)` where momentum varies."""
    return best_settings(runs, column, rng, draws, metric)


def fit_optima(
    cells: Replicates,
    column: str,
    rng: np.random.Generator,
    draws: int = DRAWS,
    metric: Metric = ACCURACY,
    lost: pd.Series | None = None,
    others: Sequence[str] = (),
) -> Optima:
    """As `best_settings`, for points with a `global_batch`, the column and the others.

    `lost` counts the runs that diverged, by batch and settings. Parabolas are fitted at the most
    frequent values of the others.
    """
    lost = pd.Series(dtype=float) if lost is None else lost
    found = collect_points(cells, column, metric.sign, lost, others)
    response = fit_response(found[0], rng, draws) if found else None
    offset = offset_of(column)
    if response and not response.is_rejected:

        def settings(places: Array) -> Array:
            with np.errstate(over="ignore"):  # a best far beyond the grid is at infinity
                return np.maximum(np.exp(places) - offset, 0.0)

        return optima_of(response, cells.num_seeds, rng, draws, settings)
    for name in others:
        cells = cells.keep(cells.points[name] == cells.points[name].mode()[0])
    several_seeds, left_out = cells.drop_single()
    found = _fit_parabolas(several_seeds, column, rng, draws, metric)
    num_lost = int(lost.sum())
    ended = format_share(num_lost, num_lost + int(cells.counts.sum())) if num_lost else ""
    diverged = f"runs that diverged are not in the fit: {ended}" if num_lost else ""
    notes = filter(None, [found.note, left_out, diverged])
    return replace(found, note="; ".join(notes))


def collect_points(
    cells: Replicates, column: str, sign: float, lost: pd.Series, others: Sequence[str] = ()
) -> tuple[Points, pd.MultiIndex] | None:
    """Points for `fit_response`, and their batch and settings.

    None if no batch has three settings, or the metric of a batch is the same at all of them. Where
    runs diverged, the metric is at most the mean of those that finished; where none did, at most
    the worst mean of the batch. Batches with fewer settings are left out. In other settings the
    response is a parabola, whose best moves with the batch.

    Args:
        cells: points with a `global_batch`, the column and the others.
        column: the setting of the response.
        sign: of the metric.
        lost: how many runs diverged, by the batch and the settings.
        others: settings that vary besides.
    """
    names = ["global_batch", column, *others]
    frame = cells.points[names].astype(float)
    frame = frame.assign(value=sign * cells.means, count=cells.counts).set_index(names)
    if len(lost):
        counts = lost.rename("lost").reset_index()[[*names, "lost"]].astype(float)
        counts = counts[counts["global_batch"].isin(cells.points["global_batch"])]
        frame = frame.join(counts.set_index(names), how="outer")
    frame["lost"] = frame["lost"].fillna(0.0) if len(lost) else 0.0
    seen = frame[frame["value"].notna()].reset_index()
    by_batch = seen.groupby("global_batch")
    usable = by_batch[column].nunique() >= FEWEST_SETTINGS
    is_flat = by_batch["value"].agg(np.ptp) <= _ROUNDING * by_batch["value"].agg(
        lambda v: v.abs().max()
    )
    usable = usable[usable].index
    if not len(usable) or is_flat[usable].any():
        return None
    frame["value"] = frame["value"].fillna(frame.groupby(level=0)["value"].transform("min"))
    frame = frame[frame.index.isin(usable, level=0)]
    settings = frame.index.to_frame(index=False)
    square, free = cells.keep(cells.points["global_batch"].isin(usable)).scatter("global_batch")
    batches = settings["global_batch"].to_numpy(float)
    points = Points(
        batches=batches,
        places=np.log(settings[column].to_numpy(float) + offset_of(column)),
        measured=frame["value"].to_numpy(float),
        counts=frame["count"].fillna(frame["lost"]).to_numpy(float),
        groups=np.unique(batches, return_inverse=True)[1],
        is_bound=(frame["lost"] > 0).to_numpy(),
        square=square,
        free=free,
        others=further_columns([settings[name].to_numpy(float) for name in others], batches),
        offset=offset_of(column),
    )
    return points, pd.MultiIndex.from_frame(settings)


def offset_of(column: str) -> float:
    """What is added to a setting before its logarithm is taken."""
    return WARMUP_OFFSET if column == "warmup_epochs" else 0.0


def further_columns(settings: Sequence[Array], batches: Array) -> Array:
    """Parabolas in further settings whose best moves with the batch, as columns."""
    x = np.log(batches) - np.log(batches).mean()
    columns: list[Array] = []
    for values in settings:
        u = np.log(values) if (values > 0).all() else values
        u = (u - u.mean()) / max(float(np.ptp(u)), _ROUNDING)
        columns += [u, u**2, u * x]
    return np.stack(columns, axis=1) if columns else np.empty((len(batches), 0))


def optima_of(
    response: Response,
    num_seeds: int,
    rng: np.random.Generator,
    draws: int,
    settings: Callable[[Array], Array],
) -> Optima:
    """The best of each batch by one response, and how far it depends on the shape.

    `settings` are those of places on the scale of the response.

    Between settings the shape is not seen, so a best is known to a quarter of their distance at
    most. With fewer than five settings, or without replicates, it lies between the settings beside
    the best one.
    """
    points = response.fitter.points
    ends = np.empty((2, 2, len(response.batches)))
    for i, place in enumerate(response.fitter.members):
        order = place[np.argsort(points.places[place])]
        u, top = points.places[order], int(response.fit[order].argmax())
        beside = u[max(top - 1, 0)], u[min(top + 1, len(u) - 1)]
        quarter = (beside[1] - beside[0]) / 8
        is_coarse = len(u) < _FEWEST_TO_CUT or not points.free
        near = response.best[i] - quarter, response.best[i] + quarter
        ends[:, :, i] = [u[0], u[-1]], beside if is_coarse else near
    cut = [fit_response(part, rng, draws) for part in cut_ends(points)]
    spread = [response.draws, *(fit.draws for fit in cut if fit)]

    return Optima(
        batches=response.batches,
        best=settings(response.best),
        draws=settings(response.draws) if response.exponent.has_interval else None,
        low_edge=settings(ends[0, 0]),
        high_edge=settings(ends[0, 1]),
        num_seeds=num_seeds,
        note="",
        no_interval="" if response.exponent.has_interval else "too few points: no interval",
        draws_cut=tuple(map(settings, [*spread[1:], ends[1]])),
        response=response,
    )


def cut_ends(points: Points) -> list[Points]:
    """The points without the lowest setting of each batch, and without the highest; none if few."""
    members = Fitter(points, points.counts).members
    if min(map(len, members)) < _FEWEST_TO_CUT:
        return []
    ends = ([place[points.places[place].argmin()] for place in members],
            [place[points.places[place].argmax()] for place in members])  # fmt: skip
    return [points.keep(~np.isin(np.arange(len(points.places)), end)) for end in ends]


def _fit_parabolas(
    cells: Replicates, column: str, rng: np.random.Generator, draws: int, metric: Metric
) -> Optima:
    """As `fit_optima`, a parabola at each batch."""
    offset = offset_of(column)
    batch = cells.points["global_batch"].to_numpy(dtype=float)
    setting = cells.points[column].to_numpy(dtype=float)
    sizes, counts = np.unique(batch, return_counts=True)
    batches = sizes[counts >= FEWEST_SETTINGS]
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
    if optima.response:
        return replace(optima.response.exponent, num_seeds=optima.num_seeds)
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
    if optima.response:
        return found, [optima.response.exponents]
    return found, [_slopes(optima.batches, d) for d in (optima.draws, *optima.draws_cut)]


def _slopes(batches: Array, best: Array) -> Array:
    x = np.log(batches) - np.log(batches).mean()
    with np.errstate(divide="ignore", invalid="ignore"):
        y = np.where(best > 0, np.log(best), np.nan)
        slopes = (y @ x) / (x @ x)
    return np.where(np.isfinite(slopes), slopes, np.nan)
