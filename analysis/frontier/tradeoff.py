"""The frontier of time against device-hours: its knee, and what the next doubling buys."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.frontier.closed_form import ClosedForm
from analysis.frontier.cluster import Cluster
from analysis.frontier.model import Work, points
from analysis.stats.replicates import DRAWS, Array, Replicates, fixed_rng, percentile_interval
from analysis.stats.target import FEWEST_EPOCHS, critical_batch

#: Limit on ``log(draw / mean)``, which is huge for some draws with two seeds.
_FARTHEST = 50.0


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps to the target by batch, with draws of their means.

    Attributes:
        means: by batch.
        draws: of the means, by batch; empty without two seeds of every batch.
        notes: what limits them.
    """

    means: dict[int, float]
    draws: Mapping[int, Array]
    notes: tuple[str, ...] = ()


def steps_to_target(reached: pd.DataFrame) -> Steps:
    """Steps by batch, from runs as `to_target` returns them, one for each batch and seed.

    Raises:
        ValueError: if no batch reached the target in all of its runs.
    """
    missed = sorted(
        int(b) for b in reached.loc[~reached["reached_target"], "global_batch"].unique()
    )
    usable = reached[~reached["global_batch"].isin(missed)].assign(outcome="finished")
    if usable.empty:
        msg = (
            "every run of a batch must reach the target; got no such batch among "
            f"{', '.join(f'{batch:,}' for batch in missed)}. Choose a lower --target, or train "
            "longer."
        )
        raise ValueError(msg)
    cells = Replicates.of(usable, ["global_batch"], "steps_to_target")
    batches = [int(b) for b in cells.points["global_batch"]]
    draws: dict[int, Array] = {}
    if not cells.no_interval:
        rng, each = fixed_rng(), zip(batches, cells.values, strict=True)
        draws = {batch: _drawn(values, rng) for batch, values in each}
    named = ", ".join(f"{batch:,}" for batch in missed)
    note = f"Left out, as not every run reached the target: batch {named}." if missed else ""
    means = dict(zip(batches, map(float, cells.means), strict=True))
    return Steps(means, draws, tuple(filter(None, [note, _soon(usable)])))


def _soon(reached: pd.DataFrame) -> str:
    """A note on batches that take few epochs to the target: times may be off by part of one."""
    if "epochs_to_target" not in reached:
        return ""
    epochs = reached.groupby("global_batch")["epochs_to_target"].mean()
    if (soon := epochs[epochs < FEWEST_EPOCHS]).empty:
        return ""
    named = ", ".join(f"{batch:,}" for batch in soon.index)
    return (
        f"Reached in fewer than {FEWEST_EPOCHS} epochs at batch {named}: where in an epoch is not "
        "known, so these times may be up to an epoch too long, and their intervals are too narrow."
    )


def _drawn(steps: Array, rng: np.random.Generator) -> Array:
    """Draws of a batch's mean whose central 95 % are Student's interval, in logarithms.

    Each batch's interval comes from the spread of its own seeds, which few seeds tell poorly; the
    spread at other batches is no help.
    """
    mean = steps.mean()
    error = steps.std(ddof=1) / np.sqrt(len(steps)) / mean
    away = error * rng.standard_t(len(steps) - 1, DRAWS)
    return mean * np.exp(np.clip(away, -_FARTHEST, _FARTHEST))


def closed_form(reached: pd.DataFrame, work: Work) -> ClosedForm | str:
    """The closed form at the largest micro-batch, or why there is none."""
    try:
        fit = critical_batch(reached, fixed_rng(), draws=100)
    except ValueError as error:
        return f"No closed form: {error}"
    if np.isnan(fit.critical_batch.value):
        return f"No closed form: {fit.critical_batch.note}."
    return form_of(fit.fewest_steps, fit.fewest_examples, work)


def form_of(fewest_steps: float, fewest_examples: float, work: Work) -> ClosedForm:
    """The closed form of a hyperbola, at the largest micro-batch of known speed."""
    micro_batch = max(1, *work.speeds.times)
    rate = micro_batch / work.speeds.micro_s(micro_batch)
    return ClosedForm(fewest_steps, fewest_examples, micro_batch, rate)


@dataclass(frozen=True, slots=True)
class Tradeoff:
    """Time against device-hours.

    Attributes:
        everything: every batch on every number of devices, with the columns of `points`.
        best: a row for each batch, at its fastest or on the devices asked for; with intervals.
        frontier: rows that no other beats in both time and device-hours, the cheapest first.
        knee: the row with the least product of time and device-hours.
        knee_share: how often the knee has this batch when the seeds are resampled; nan without
            draws.
        doubled: the fastest row on at most twice the knee's devices; where none of these is
            faster, the cheapest that is; None without any.
        time_share: time after the doubling, of the time before, with its interval.
        hours_share: device-hours likewise.
    """

    everything: pd.DataFrame
    best: pd.DataFrame
    frontier: pd.DataFrame
    knee: pd.Series
    knee_share: float
    doubled: pd.Series | None
    time_share: tuple[float, float, float]
    hours_share: tuple[float, float, float]


def tradeoff(steps: Steps, work: Work, cluster: Cluster, devices: int | None = None) -> Tradeoff:
    """Compare all batches on all numbers of devices; `devices` limits the table to one.

    Raises:
        ValueError: if no batch can be shared by so many devices.
    """
    everything = points(steps.means, work, cluster)
    asked = everything if devices is None else points(steps.means, work, cluster, devices)
    if asked.empty:
        raise ValueError(_too_many(steps, work, devices))
    if devices is not None and devices not in set(everything["devices"]):
        everything = pd.concat([everything, asked], ignore_index=True)
    cheapest = everything.iloc[everything["device_hours"].argmin()]
    examples = everything["steps"] * everything["global_batch"]
    everything["examples_ratio"] = examples / (cheapest["steps"] * cheapest["global_batch"])
    ratio = everything["device_hours"] / cheapest["device_hours"]
    everything["machine_ratio"] = ratio / everything["examples_ratio"]
    everything = _with_intervals(everything, steps)
    shown = everything if devices is None else everything[everything["devices"] == devices]
    fastest = shown.groupby("global_batch")["time_s"].idxmin()
    frontier = _frontier(everything)
    knee = frontier.iloc[_products(frontier).argmin()]
    doubled = _doubled(everything, knee)
    return Tradeoff(
        everything=everything,
        best=everything.loc[fastest].reset_index(drop=True),
        frontier=frontier,
        knee=knee,
        knee_share=_knee_share(everything, steps, knee),
        doubled=doubled,
        time_share=_share(steps, knee, doubled, "time_s"),
        hours_share=_share(steps, knee, doubled, "device_hours"),
    )


def _too_many(steps: Steps, work: Work, devices: int | None) -> str:
    smallest, largest = work.speeds.smallest, max(steps.means)
    if devices is None:
        return (
            "a batch must be a multiple of a micro-batch of known speed; got none such for "
            f"{work.speeds.in_words}. Give --examples-per-s at micro-batches that divide the "
            "batches."
        )
    return (
        "--devices must share a batch in micro-batches of known speed, which are "
        f"{smallest} or more: at most {largest // smallest:,} for batch {largest:,}, dividing it; "
        f"got --devices {devices}. Name fewer, or give --examples-per-s at smaller micro-batches."
    )


def _with_intervals(rows: pd.DataFrame, steps: Steps) -> pd.DataFrame:
    """Time and device-hours are in proportion to the steps, and so are their intervals."""
    ends = {b: percentile_interval(drawn) for b, drawn in steps.draws.items()}
    for end, place in (("low", 0), ("high", 1)):
        share = rows["global_batch"].map(
            {b: pair[place] / steps.means[b] for b, pair in ends.items()}
        )
        rows[f"time_{end}_s"] = rows["time_s"] * share
        rows[f"device_hours_{end}"] = rows["device_hours"] * share
    return rows


def _frontier(rows: pd.DataFrame) -> pd.DataFrame:
    ordered = rows.sort_values(["device_hours", "time_s"])
    return ordered[ordered["time_s"] < ordered["time_s"].cummin().shift(fill_value=np.inf)]


def _products(rows: pd.DataFrame) -> pd.Series:
    return rows["time_s"] * rows["device_hours"]


def _knee_share(rows: pd.DataFrame, steps: Steps, knee: pd.Series) -> float:
    """The product scales with the steps squared, so the least one of each batch is enough."""
    if not steps.draws:
        return np.nan
    least = _products(rows).groupby(rows["global_batch"]).min()
    drawn = np.stack(
        [least[b] * (steps.draws[int(str(b))] / steps.means[int(str(b))]) ** 2 for b in least.index]
    )
    return float((least.index.to_numpy()[drawn.argmin(axis=0)] == knee["global_batch"]).mean())


def _doubled(rows: pd.DataFrame, knee: pd.Series) -> pd.Series | None:
    within = rows[rows["devices"] <= 2 * knee["devices"]]
    fastest = within.iloc[within["time_s"].argmin()]
    if fastest["time_s"] < knee["time_s"]:
        return fastest
    faster = rows[rows["time_s"] < knee["time_s"]]
    return None if faster.empty else faster.iloc[faster["device_hours"].argmin()]


def _share(
    steps: Steps, knee: pd.Series, doubled: pd.Series | None, column: str
) -> tuple[float, float, float]:
    if doubled is None:
        return np.nan, np.nan, np.nan
    share = float(doubled[column] / knee[column])
    before, after = int(knee["global_batch"]), int(doubled["global_batch"])
    if not steps.draws:
        return share, np.nan, np.nan
    if before == after:  # the same runs before and after: the seeds cancel out
        return share, share, share
    drawn = share * (steps.draws[after] / steps.means[after])
    return share, *percentile_interval(drawn / (steps.draws[before] / steps.means[before]))
