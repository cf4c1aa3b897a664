"""The batch above which examples to a target grow: where they double, and E_min / S_min."""

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats
from scipy.optimize import isotonic_regression

from analysis.stats.hyperbola import BEYOND, Times
from analysis.stats.outliers import add_without, drop_wild
from analysis.stats.replicates import (
    LEVEL,
    NO_SPREAD,
    REJECTED,
    Array,
    Estimate,
    Replicates,
    format_interval,
)
from analysis.stats.to_target import FEWEST_EVALUATIONS, evaluations_to_target

#: A hyperbola that the seeds reject still describes means that are all as near [fraction of it].
CLOSE = 0.1
#: How many times the fewest examples both sides of a valley take.
_VALLEY = 1.25

#: With one seed a batch, batches whose scatter about the hyperbola tells the noise.
FEWEST_SCATTERED = 4

#: Points and measure of examples to a target.
_BY = ["global_batch"], "examples_to_target"


@dataclass(frozen=True, slots=True)
class CriticalBatch:
    """Fit of examples to target against the batch.

    Attributes:
        critical_batch: `E_min / S_min`, where the fitted examples are twice the fewest [examples];
            nan if the hyperbola is rejected or has no bend; then it may have one end.
        fewest_steps: limit for large batches [steps].
        fewest_examples: limit for small batches [examples].
        lack_of_fit: F of the means' scatter about the hyperbola against the scatter of seeds.
        lack_of_fit_p: probability of an F this large if the hyperbola holds.
        farthest: the largest distance of a mean from the hyperbola [fraction; negative below].
        holds_up_to: the largest batch up to which the hyperbola is not rejected; nan if none.
    """

    critical_batch: Estimate
    fewest_steps: float
    fewest_examples: float
    lack_of_fit: float
    lack_of_fit_p: float
    farthest: float
    holds_up_to: float


def critical_batch(reached: pd.DataFrame) -> CriticalBatch:
    """Batch above which more examples per step buy little.

    ``examples = fewest_examples + fewest_steps * batch``, hence
    ``(S / S_min - 1) (E / E_min - 1) = 1``, by maximum likelihood: noise in proportion to the
    batch's mean, runs that ended before the target as later than their end, batches whose seeds
    agree as one run each. The interval is that of the profile likelihood. If the scatter
    about the hyperbola is too large for that of the seeds, the noise is that of the batches' means,
    as far as none is farther than a tenth from it; otherwise it has no such batch: see
    `doubling_batch`. With one seed a batch the scatter is the noise too.

    Uses what `to_target` returns.

    Raises:
        ValueError: if fewer than three batches reach the target in every run, or any in fewer than
            four evaluations.

    Source:
        McCandlish et al. 2018, arXiv:1812.06162, equations 2.11 and 2.12.
    """
    cells, known, notes = _cells_to_target(reached, 3)
    if floor := find_floor(cells):
        msg = (
            f"examples to the target must not fall with the batch first; got a valley, with fewest "
            f"at batch {floor:,.0f}. Leave the batches below it out."
        )
        raise ValueError(msg)
    fit = _fit_hyperbola(cells, known)
    is_held = cells.points["global_batch"] <= fit.holds_up_to
    notes = [fit.critical_batch.note, *notes]
    if is_held.any() and not is_held.all():
        kept = cells.keep(is_held)
        up_to = _fit_hyperbola(kept, known[known["global_batch"] <= fit.holds_up_to])
        next_batch = cells.points["global_batch"][~is_held].iloc[0]
        law = up_to.fewest_examples + up_to.fewest_steps * next_batch
        off = cells.means[~is_held][0] / law - 1
        more = f"{100 * abs(off):.2g} % {'more' if off > 0 else 'fewer'}"
        ratio = format_interval(up_to.critical_batch)
        notes.append(
            f"it holds up to {fit.holds_up_to:,.0f}, there with E_min / S_min {ratio}; "
            f"{next_batch:,} takes {more} examples than that"
        )
    found = replace(fit.critical_batch, note="; ".join(filter(None, notes)))
    kept, wild = _drop_wild(reached)
    if wild:
        found = add_without(found, wild, critical_batch(kept).critical_batch)
    return replace(fit, critical_batch=found)


def _fit_hyperbola(cells: Replicates, known: pd.DataFrame) -> CriticalBatch:
    """The fit to complete batches, `cells`, and to all rows of batches that are used."""
    batches = cells.points["global_batch"].to_numpy(dtype=float)
    value, low, high, fewest = Times.of_rows(known).ratio()
    means = cells.points.assign(examples=cells.means, is_ended=False)
    if (is_coarse := cells.is_coarse & (cells.counts > 1)).any():
        others = known[~known["global_batch"].isin(batches[is_coarse])]
        _, low, high, _ = Times.of_rows(pd.concat([others, means[is_coarse]])).ratio()
    is_flat = value >= 0.99 * BEYOND * batches[-1]
    steps = 0.0 if is_flat else fewest / value
    fitted = fewest + steps * batches
    away = cells.means / fitted - 1
    far = int(np.abs(away).argmax())
    weights = cells.counts / cells.means**2
    scatter, p = lack_of_fit(cells, batches, weights, fitted)
    is_rejected = p < REJECTED and scatter > 1
    is_off = is_rejected and abs(away[far]) > CLOSE
    notes, no_interval = list[str](), NO_SPREAD if cells.no_interval == NO_SPREAD else ""
    if cells.counts.max() < 2:
        is_few = len(batches) < FEWEST_SCATTERED
        no_interval = cells.no_interval if is_few else ""
        notes = [] if is_few else ["one seed: the interval is from the scatter of the batches"]
    if is_flat:
        value, notes = np.nan, ["examples to target do not grow with the batch", *notes]
    elif is_rejected:
        side = "above" if away[far] > 0 else "below"
        about = (
            f"(lack of fit F = {scatter:.3g}, p = {p:.2g}): "
            f"{batches[far]:,.0f} is {100 * abs(away[far]):.2g} % {side} it"
        )
        if is_off:
            value, low, high = np.nan, np.nan, np.nan
            notes = [f"the hyperbola does not fit {about}"]
        else:
            every = {"examples": ("examples", "mean"), "is_ended": ("is_ended", "any")}
            rows = known.groupby("global_batch", as_index=False).agg(**every)
            _, low, high, _ = Times.of_rows(rows).ratio()
            notes = [f"the interval is from the scatter about the hyperbola {about}"]
    elif value <= 1.01 * batches[0] / BEYOND:
        value, notes = np.nan, ["steps to target do not fall with the batch", *notes]
    if no_interval:
        low, high, notes = np.nan, np.nan, [*notes, no_interval]
    method = (
        "hyperbola through examples to target, noise in proportion to them, by maximum likelihood; "
        "95 % profile interval"
    )
    note = "; ".join(filter(None, notes))
    estimate = Estimate(float(value), low, high, cells.num_seeds, method, note)
    held = float(batches[-1])
    if is_off:
        fewer = np.arange(len(batches)) < len(batches) - 1
        rest = known[known["global_batch"] < batches[-1]]
        held = _fit_hyperbola(cells.keep(fewer), rest).holds_up_to if fewer.sum() > 2 else np.nan
    return CriticalBatch(estimate, steps, fewest, scatter, p, float(away[far]), held)


def find_floor(cells: Replicates) -> float:
    """The batch with the fewest examples, if both smaller and larger ones take many more; else 0.

    More by a quarter, and by three errors where there are seeds: below the floor of the valley that
    AdamW has, the hyperbola and the isotonic law are both false.
    """
    least = int(cells.means.argmin())
    error = np.where(cells.counts > 1, cells.mean_variances, 0.0)
    for side in (cells.means[:least], cells.means[least + 1 :]):
        if not len(side) or side.max() < _VALLEY * cells.means[least]:
            return 0.0
        at = int((cells.means == side.max()).argmax())
        if side.max() - cells.means[least] < 3 * np.sqrt(error[at] + error[least]):
            return 0.0
    return float(cells.points["global_batch"].iloc[least])


def doubling_batch(reached: pd.DataFrame) -> Estimate:
    """The batch at which examples to target are twice those of the smallest batch.

    Without a model: the means are made to only grow with the batch (isotonic regression of their
    logarithms) and joined by straight lines in logarithms; a run that ended before the target
    counts as reaching it at its end. Between batches that were run: from the largest up to which
    each is shown to take
    less than twice the examples to the smallest from which each is shown to take more, by one-sided
    t tests at 2.5 % in that order, with the larger of the batch's own variance and that of all.
    Uses what `to_target` returns.

    Raises:
        ValueError: if fewer than two of three batches reach the target in every run, or any in
            fewer than four evaluations.

    Returns:
        The batch [examples]; infinite if they do not double up to the largest. Without either
        bound: nan and infinite.
    """
    cells, known, notes = _cells_to_target(reached, 2)
    if floor := find_floor(cells):
        found = doubling_batch(reached[reached["global_batch"] >= floor])
        note = f"a valley: smaller batches than {floor:,.0f} take more examples, and are left out"
        return replace(found, note=f"{note}; {found.note}")
    first = float(cells.points["global_batch"].iloc[0])
    rows = known[known["global_batch"] >= first].sort_values("global_batch")
    batches = rows["global_batch"].unique().astype(float)
    by_batch = tuple(np.asarray(v, float) for _, v in rows.groupby("global_batch")["examples"])
    means, counts = (np.array([f(v) for v in by_batch]) for f in (np.mean, len))
    is_whole = np.isin(batches, cells.points["global_batch"])
    half = _half_widths(cells, by_batch, is_whole)
    growth = np.log(means / means[0] / 2)
    is_less, is_more = is_whole & (growth + half < 0), growth - half > 0
    is_less[0] = True
    low = batches[int(np.logical_and.accumulate(is_less).sum()) - 1]
    count = int(np.logical_and.accumulate(is_more[::-1]).sum())
    high = batches[-count] if count else np.inf
    if np.isinf(high) and low == first:
        low = np.nan
    if np.isnan(half).all():
        low, high = np.nan, np.nan
    place, rise = np.inf, isotonic_regression(growth, weights=counts.astype(float)).x
    if len(beyond := np.flatnonzero(rise > 0)):
        i = int(beyond[0])
        share = np.clip(rise[i - 1] / (rise[i - 1] - rise[i]), 0, 1)
        place = float(batches[i - 1] * (batches[i] / batches[i - 1]) ** share)
    method = (
        f"isotonic in log batch, twice the examples of the smallest batch, {first:,.0f}; 95 % "
        "by t tests, between the batches that were run"
    )
    ends = "the ends are batches that were run"
    if np.isnan(half).all():
        ends = cells.no_interval
    elif np.isnan(low) and np.isinf(high):
        shown = 2 * np.exp(half[-1])
        ends = f"{shown:.2g} times as many at {batches[-1]:,.0f} would have been shown to be more"
    note = "; ".join(filter(None, [ends, *notes]))
    found = Estimate(place, float(low), float(high), cells.num_seeds, method, note)
    kept, wild = _drop_wild(reached)
    return add_without(found, wild, doubling_batch(kept)) if wild else found


def _half_widths(
    cells: Replicates, by_batch: tuple[Array, ...], is_whole: NDArray[np.bool_]
) -> Array:
    """Half of each batch's 95 % interval of log examples over the smallest batch's; maybe nan."""
    shared, free = shared_noise(cells)
    counts = np.array([*map(len, by_batch)])
    own = np.array([(v.std(ddof=1) / v.mean()) ** 2 if len(v) > 1 else 0.0 for v in by_batch])
    variance = np.maximum(own, shared) / counts
    is_coarse = cells.is_coarse & (cells.counts > 1)
    known = np.where(is_coarse, cells.mean_variances / cells.means**2, variance[is_whole])
    variance[is_whole] = known
    t = float(stats.t.ppf(0.5 + LEVEL / 2, free))
    return t * np.sqrt(variance + variance[0])


def shared_noise(cells: Replicates) -> tuple[float, float]:
    """Variance of a run's log examples, by all batches, and its degrees of freedom.

    Of the seeds of each batch; with one seed a batch, of the scatter about the hyperbola, if there
    are enough batches; else nan. Batches whose seeds agree do not tell.
    """
    tells = (cells.counts > 1) & ~cells.is_coarse
    if tells.any():
        cells = cells.keep(tells)
        free, each = cells.counts - 1, cells.mean_variances * cells.counts / cells.means**2
        return float(free @ each / free.sum()), float(free.sum())
    if cells.counts.max() > 1:
        return (np.nan, np.nan) if cells.no_interval == NO_SPREAD else (0.0, np.inf)
    if (count := len(cells.counts)) < FEWEST_SCATTERED:
        return np.nan, np.nan
    times = Times.of_rows(cells.points.assign(examples=cells.means, is_ended=False))
    value, _, _, fewest = times.ratio()
    rest = times.taken - fewest * (1 + times.batches / value) / times.scale
    return float((rest**2).sum() / (count - 2)), float(count - 2)


def _drop_wild(reached: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """The runs without wild seeds; one that missed the target counts with its end."""
    until = reached.get("missed_until", np.nan)
    taken = reached["examples_to_target"].where(_is_reached(reached), until)
    kept, wild = drop_wild(reached.assign(outcome="finished", examples_to_target=taken), *_BY)
    return reached.loc[kept.index], wild


def _is_reached(reached: pd.DataFrame) -> pd.Series:
    """Which runs reached the target before their rate fell."""
    return reached["reached_target"] & ~pd.Series(reached.get("rate_fell", False), reached.index)


def _cells_to_target(
    reached: pd.DataFrame, fewest: int
) -> tuple[Replicates, pd.DataFrame, list[str]]:
    """The batches where every run reached the target, all runs that tell something, and notes.

    A batch at which a run did not reach it, and it is not known until when, is left out.
    """
    is_ended = ~_is_reached(reached)
    examples = reached["examples_to_target"].mask(is_ended, reached.get("missed_until", np.nan))
    rows = reached[["global_batch"]].assign(examples=examples.astype(float), is_ended=is_ended)
    unknown = {*rows.loc[~(rows["examples"] > 0), "global_batch"]}
    missed = {*rows.loc[is_ended, "global_batch"]}
    rows = rows[~rows["global_batch"].isin(unknown)]
    usable = reached[~reached["global_batch"].isin(missed)].assign(outcome="finished")
    cells = Replicates.from_runs(usable, ["global_batch"], "examples_to_target")
    if len(cells.values) < fewest or rows["global_batch"].nunique() < 3:
        has_more = reached["global_batch"].nunique() >= 3
        easier = "Choose a target that is easier to reach, or train longer."
        msg = (
            "three or more batches must reach the target in every run; got "
            f"{len(cells.values)}. {easier if has_more else 'Run more batches.'}"
        )
        raise ValueError(msg)
    if "epochs_to_target" in usable:
        taken, unit = evaluations_to_target(usable)
        if (soonest := taken.min()) < FEWEST_EVALUATIONS:
            msg = (
                f"every batch must take {FEWEST_EVALUATIONS} {unit} or more to the target; "
                f"got {soonest:.2g}. Choose a target that is harder to reach."
            )
            raise ValueError(msg)
    said = (
        ("left out, not every run reached the target", missed & unknown),
        ("counted as later than their ends, not every run reached the target", missed - unknown),
    )
    notes = [
        f"{words}: batch {', '.join(f'{int(b):,}' for b in sorted(batches))}"
        for words, batches in said if batches
    ]  # fmt: skip
    return cells, rows, notes


def lack_of_fit(cells: Replicates, x: Array, weights: Array, fitted: Array) -> tuple[float, float]:
    """F test of a weighted line in x through points with replicates, of whatever spreads.

    ``F = sum(w (mean - fitted)**2) / sum(w (1 - h) s**2 / n)`` with the leverages h, which without
    weights and with equal spreads is the textbook's; Satterthwaite's degrees of freedom.

    Returns:
        F, and its probability under the line; nan if no point has replicates that differ.

    Source:
        Brown & Forsythe 1974, Technometrics 16, 129-132; Mehrotra 1997, Communications in
        Statistics: Simulation and Computation 26, 1139-1145 (degrees of freedom).
    """
    if cells.no_interval or len(x) < 3:
        return np.nan, np.nan
    root = np.sqrt(weights)
    basis, _ = np.linalg.qr(np.stack([np.ones_like(x), x], axis=1) * root[:, None])
    rest = np.eye(len(x)) - basis @ basis.T
    noise = weights * cells.mean_variances
    parts = np.diag(rest) * noise
    product = rest * noise
    free_fit = parts.sum() ** 2 / (product * product.T).sum()
    own = np.where(cells.is_coarse, np.inf, cells.counts - 1)
    free_pure = parts.sum() ** 2 / max((parts**2 / own).sum(), 1e-9 * parts.sum() ** 2)
    f = float((weights * (cells.means - fitted) ** 2).sum() / parts.sum())
    return f, float(stats.f.sf(f, free_fit, free_pure))
