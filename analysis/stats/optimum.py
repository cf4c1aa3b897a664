"""The best warmup or learning rate at each batch, and how it grows with the batch."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.stats.replicates import DRAWS, Array, Estimate, Replicates
from analysis.tables.metric import ACCURACY, Metric

#: Added to a warmup before taking logarithms, so that no warmup has one [epochs].
WARMUP_OFFSET = 1.0


@dataclass(frozen=True, slots=True)
class Optima:
    """Where the metric is best, at each batch.

    Attributes:
        batches: global batches with enough settings to fit a parabola [examples].
        best: the vertex at each batch.
        draws: vertices of the bootstrap draws, shape (draws, batches); None with one seed.
        low_edge: smallest setting tried at each batch.
        high_edge: largest setting tried at each batch.
        num_seeds: fewest replicates of a point.
        num_diverged: runs left out because they diverged.
        note: points that were left out.
    """

    batches: Array
    best: Array
    draws: Array | None
    low_edge: Array
    high_edge: Array
    num_seeds: int
    num_diverged: int
    note: str

    def table(self) -> pd.DataFrame:
        """One row per batch: `best`, `low`, `high`, `is_interior`, `num_seeds`, `note`."""
        rows = [self._row(i) for i in range(len(self.batches))]
        columns = ["global_batch", "best", "low", "high", "is_interior", "num_seeds", "note"]
        return pd.DataFrame(rows, columns=columns)

    def _row(self, i: int) -> tuple[object, ...]:
        low_edge, high_edge = self.low_edge[i], self.high_edge[i]
        is_interior = bool(low_edge < self.best[i] < high_edge)
        at_edge = (
            f"the best setting is at the edge of the grid ({low_edge:g} to {high_edge:g}): "
            "unbounded, extend the grid"
        )
        drawn = None if self.draws is None else self.draws[:, i]
        notes = ["" if is_interior else at_edge, "one seed: no interval" if drawn is None else ""]
        e = Estimate.of(self.best[i], drawn, self.num_seeds, "", *notes)
        return int(self.batches[i]), e.value, e.low, e.high, is_interior, e.num_seeds, e.note


def best_warmups(
    runs: pd.DataFrame,
    rng: np.random.Generator,
    draws: int = DRAWS,
    metric: Metric = ACCURACY,
) -> Optima:
    """The warmup with the best metric at each batch.

    ``metric = a - c * (log(warmup + 1) - log(best + 1))**2`` by least squares at each batch, with
    c above 0 where higher is better; intervals by resampling seeds inside each point.

    Uses `outcome`, `global_batch`, `warmup_epochs` and the metric.

    Returns:
        The best warmups [epochs] of batches with three or more warmups.

    Source:
        The parabola is ours: smooth, one optimum, exact for a quadratic in log warmup.
    """
    return _optima(
        runs,
        "warmup_epochs",
        to_scale=lambda w: np.log(w + WARMUP_OFFSET),
        from_scale=lambda u: np.maximum(np.exp(u) - WARMUP_OFFSET, 0.0),
        rng=rng,
        draws=draws,
        metric=metric,
    )


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
    scales = {"to_scale": np.log, "from_scale": np.exp}
    return _optima(runs, column, **scales, rng=rng, draws=draws, metric=metric)


def _optima(
    runs: pd.DataFrame,
    column: str,
    *,
    to_scale: Callable[[Array], Array],
    from_scale: Callable[[Array], Array],
    rng: np.random.Generator,
    draws: int,
    metric: Metric,
) -> Optima:
    cells, note = Replicates.of(runs, ["global_batch", column], metric.name).replicated()
    drawn = cells.resampled_means(rng, draws) if cells.num_seeds > 1 else None
    batch = cells.points["global_batch"].to_numpy(dtype=float)
    setting = cells.points[column].to_numpy(dtype=float)
    sizes, counts = np.unique(batch, return_counts=True)
    batches = sizes[counts >= 3]
    places = [np.flatnonzero(batch == b) for b in batches]

    def vertices(means: Array) -> Array:
        columns = [
            _vertex(to_scale(setting[p]), metric.sign * means[:, p], cells.counts[p].astype(float))
            for p in places
        ]
        if not columns:
            return np.empty((len(means), 0))
        with np.errstate(over="ignore"):  # a vertex far beyond the grid is at infinity
            return from_scale(np.stack(columns, axis=1))

    return Optima(
        batches=batches,
        best=vertices(cells.means[None, :])[0],
        draws=None if drawn is None else vertices(drawn),
        low_edge=np.array([setting[p].min() for p in places]),
        high_edge=np.array([setting[p].max() for p in places]),
        num_seeds=cells.num_seeds,
        num_diverged=int((runs["outcome"] == "diverged").sum()),
        note=note,
    )


def _vertex(u: Array, means: Array, weights: Array) -> Array:
    """Place of the maximum of a weighted parabola; infinite if it has none near the grid."""
    center = np.average(u, weights=weights)
    design = np.stack([np.ones_like(u), u - center, (u - center) ** 2], axis=1)
    root = np.sqrt(weights)[:, None]
    _, slope, curvature = np.linalg.lstsq(design * root, (means * root.T).T, rcond=None)[0]
    with np.errstate(divide="ignore", invalid="ignore"):
        vertex = center - slope / (2.0 * curvature)
    span = u.max() - u.min()
    is_near = (curvature < 0) & (vertex > u.min() - span) & (vertex < u.max() + span)
    return np.where(is_near, vertex, np.where(slope > 0, np.inf, -np.inf))


def exponent(optima: Optima) -> Estimate:
    """How the best setting grows with the batch.

    ``log(best) = a + b * log(global_batch)``, least squares over batches; the interval of b by
    repeating the whole fit on each bootstrap draw.

    Returns:
        The exponent b: 0 constant, 0.5 square root, 1 linear.
    """
    method = "slope of log best on log batch; 95 % percentile bootstrap over seeds"
    if len(optima.batches) < 2:
        note = "two or more batches, each with three or more settings, are needed"
        return Estimate.of(np.nan, None, optima.num_seeds, method, note)
    value = _slopes(optima.batches, optima.best[None, :])[0]
    notes = [optima.note]
    table = optima.table()
    if not table["is_interior"].all():
        edges = ", ".join(f"{b:,}" for b in table.loc[~table["is_interior"], "global_batch"])
        notes.append(f"the optimum is at the edge of the grid at batch {edges}")
    if optima.num_diverged:
        notes.append(f"{optima.num_diverged} diverged runs are not in the fit")
    drawn = None if optima.draws is None else _slopes(optima.batches, optima.draws)
    notes.append("one seed: no interval" if drawn is None else "")
    return Estimate.of(value, drawn, optima.num_seeds, method, *notes)


def _slopes(batches: Array, best: Array) -> Array:
    x = np.log(batches) - np.log(batches).mean()
    with np.errstate(divide="ignore", invalid="ignore"):
        y = np.where(best > 0, np.log(best), np.nan)
        slopes = (y @ x) / (x @ x)
    return np.where(np.isfinite(slopes), slopes, np.nan)
