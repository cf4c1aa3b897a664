"""The best warmup or learning rate at each batch, and how it grows with the batch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from analysis.stats.outliers import add_without, drop_wild
from analysis.stats.powers import batch_power
from analysis.stats.replicates import DRAWS, NO_SPREAD, Array, Estimate, Replicates
from analysis.stats.response import Response, fit_response
from analysis.stats.shapes import Fitter, Points
from analysis.tables.metric import ACCURACY, Metric

#: Added to a warmup before taking logarithms, so that a warmup of 0 has a logarithm [epochs].
WARMUP_OFFSET = 1.0

APART = "one shape does not fit all batches: each answers for itself"
FEWEST_SETTINGS = 3  # of a batch, to tell where the best is
#: Settings of a batch from which the fit is repeated without either end.
_FEWEST_TO_CUT = 5
#: Means that differ by less than this fraction of their size are equal.
_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class Optima:
    """Where the metric is best, at each batch.

    Attributes:
        batches: global batches with enough settings [examples].
        best: at each batch; nan if the metric is the same at all settings.
        draws: the same in draws, shape (draws, batches); None without an interval.
        low_edge: smallest setting tried at each batch.
        high_edge: largest setting tried at each batch.
        num_seeds: fewest replicates of a point.
        note: what limits them.
        no_interval: why there is none; empty if there is.
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
    no_interval: str = ""
    draws_cut: tuple[Array, ...] = ()
    response: Response | None = None
    wild: str = ""
    without_wild: "Optima | None" = None

    @property
    def exponents(self) -> Array | None:
        """Draws of the exponent; None without an interval, or where each batch answers alone."""
        return self.response.exponents if self.response and self.draws is not None else None

    def table(self) -> pd.DataFrame:
        """A row per batch: `best`, `low`, `high`, `is_interior`, `num_seeds`, `note`."""
        rows: list[tuple[object, ...]] = []
        edges = zip(self.batches, self.best, self.low_edge, self.high_edge, strict=True)
        for i, (batch, best, low, high) in enumerate(edges):
            is_interior = bool(low < best < high)
            at_edge = f"the best is {high:.3g} or more, the largest tried"
            if best <= low:
                at_edge = f"the best is {low:.3g} or less, the smallest tried"
            at_edge = "" if is_interior else f"{at_edge}: extend the grid"
            if best <= low == 0:
                at_edge = "the best setting is 0, the end of its scale"
            if np.isnan(best):
                at_edge = "no setting is best: the metric is the same at all of them"
            drawn = None if self.draws is None else self.draws[:, i]
            e = Estimate.from_draws(best, drawn, self.num_seeds, "", at_edge, self.no_interval)
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
    `fit_response`. Where one shape does not fit all of them, one for each batch. Intervals of a
    batch's best include those of fits without either end of the grid: the shape moves it.

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

    `lost` counts the runs that diverged, by batch and settings.
    """
    lost = pd.Series(dtype=float) if lost is None else lost
    offset = offset_of(column)

    def settings(places: Array) -> Array:
        with np.errstate(over="ignore"):  # a best far beyond the grid is at infinity
            return np.maximum(np.exp(places) - offset, 0.0)

    found = collect_points(cells, column, metric.sign, lost, others)
    if found is None:
        return _flat_optima(cells, column)
    points, num_seeds = found[0], cells.num_seeds
    response = fit_response(points, rng, draws)
    if response and not response.is_rejected:
        optima = optima_of(response, num_seeds, rng, draws, settings)
        if cells.no_interval != NO_SPREAD:
            return optima
        return replace(optima, draws=None, draws_cut=(), no_interval=NO_SPREAD)
    each = [
        fit_response(points.keep(points.batches == batch), rng, draws)
        for batch in np.unique(points.batches)
    ]
    return _join([optima_of(part, num_seeds, rng, draws, settings) for part in each if part])


def _flat_optima(cells: Replicates, column: str) -> Optima:
    """Of batches with enough settings, whose metric is the same at all of them."""
    by_batch = cells.points.groupby("global_batch")[column]
    grids = by_batch.agg(["nunique", "min", "max"]).astype(float)
    grids = grids[grids["nunique"] >= FEWEST_SETTINGS]
    low, high = grids["min"].to_numpy(), grids["max"].to_numpy()
    batches = grids.index.to_numpy(float)
    none, why = np.full(len(grids), np.nan), cells.no_interval
    return Optima(batches, none, None, low, high, cells.num_seeds, note="", no_interval=why)


def _join(parts: Sequence[Optima]) -> Optima:
    """The optima of batches each of which answers for itself."""
    if not parts:
        none = np.empty(0)
        return Optima(none, none, None, none, none, 0, note="")
    tables = pd.concat([part.table() for part in parts], ignore_index=True)
    draws = [part.draws for part in parts if part.draws is not None]
    has_all = len(draws) == len(parts)
    return Optima(
        batches=np.concatenate([part.batches for part in parts]),
        best=np.concatenate([part.best for part in parts]),
        draws=np.concatenate(draws, axis=1) if has_all else None,
        low_edge=np.concatenate([part.low_edge for part in parts]),
        high_edge=np.concatenate([part.high_edge for part in parts]),
        num_seeds=parts[0].num_seeds,
        note=APART if len(parts) > 1 else "",
        no_interval=next((part.no_interval for part in parts if part.no_interval), ""),
        draws_cut=(tables[["low", "high"]].to_numpy(float).T,) if has_all else (),
    )


def collect_points(
    cells: Replicates, column: str, sign: float, lost: pd.Series, others: Sequence[str] = ()
) -> tuple[Points, pd.MultiIndex] | None:
    """Points for `fit_response`, and their batch and settings.

    None if no batch has three settings at which the metric is not the same everywhere. Where runs
    diverged, the metric is at most the mean of those that finished; where none did, at most
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
    is_enough = by_batch[column].nunique() >= FEWEST_SETTINGS
    is_flat = by_batch["value"].agg(np.ptp) <= _ROUNDING * by_batch["value"].agg(
        lambda v: v.abs().max()
    )
    usable = is_enough.index[is_enough & ~is_flat]
    if not len(usable):
        return None
    frame["value"] = frame["value"].fillna(frame.groupby(level=0)["value"].transform("min"))
    frame = frame[frame.index.isin(usable, level=0)]
    settings = frame.index.to_frame(index=False)
    square, free = near_best(cells, sign).scatter("global_batch")
    if cells.no_interval == NO_SPREAD:  # of seeds that all measured the same only rounding is left
        square, free = 0.0, 0.0
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


def near_best(cells: Replicates, sign: float) -> Replicates:
    """The better half of each batch's points: far from the best, spreads are of another size."""
    means = pd.Series(sign * cells.means)
    middle = means.groupby(cells.points["global_batch"].to_numpy()).transform("median")
    return cells.keep(means >= middle)


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
        quarter = (beside[1] - beside[0]) / 8  # half of it on either side
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


def exponent(optima: Optima) -> Estimate:
    """How the best setting grows with the batch.

    That of the response of all batches (`fit_response`); where each batch answers for itself, the
    slope of log best on log batch, with an interval from the scatter of the batches.

    Returns:
        The exponent: 0 constant, 0.5 square root, 1 linear.
    """
    if len(optima.batches) < 2:
        note = "two or more batches, each with three or more settings, are needed"
        return Estimate.from_draws(np.nan, None, optima.num_seeds, "", note)
    if optima.without_wild:
        all_seeds = exponent(replace(optima, without_wild=None))
        return add_without(all_seeds, optima.wild, exponent(optima.without_wild))
    if optima.response:
        found = replace(optima.response.exponent, num_seeds=optima.num_seeds)
        if not optima.no_interval:
            return found
        return replace(found, low=np.nan, high=np.nan, note=optima.no_interval)
    is_known = np.isfinite(optima.best) & (optima.best > 0)
    if is_known.all():
        found = batch_power(optima.batches, optima.best, optima.num_seeds)
        return replace(found, note="; ".join(filter(None, [optima.note, found.note])))
    named = ", ".join(f"{batch:,.0f}" for batch in optima.batches[~is_known])
    is_flat = np.isnan(optima.best).any()
    why = "the metric is the same at all settings" if is_flat else "the best is beyond the grid"
    notes = f"{why} at batch {named}", optima.note, optima.no_interval
    note = "; ".join(filter(None, notes))
    return Estimate.from_draws(np.nan, None, optima.num_seeds, "", note)
