"""Time and device-hours to a target: each batch on each number of devices, and the frontier."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.frontier.machines import Cluster, MachineSpeeds
from analysis.stats.answer import capitalize
from analysis.stats.outliers import drop_wild
from analysis.stats.replicates import DRAWS, Array, Replicates, make_rng, percentile_interval
from analysis.stats.to_target import FEWEST_EVALUATIONS, evaluations_to_target
from sweeper.planning.exchange import BACKWARD_SHARE, Algorithm, exchange

#: Limit on ``log(draw / mean)``, which is huge for some draws with two seeds.
_FARTHEST = 50.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What is trained, apart from the batch."""

    num_bytes: float  # of all gradients, as they are exchanged
    #: time of evaluations, as a fraction of the time of training on a device.
    evaluation_share: float
    speeds: MachineSpeeds  # of a device
    algorithm: Algorithm | None = None  # of the exchange; None: as NCCL chooses


@dataclass(frozen=True, slots=True, kw_only=True)
class TradeoffStep:
    """An optimizer step."""

    micro_batch: int  # examples per device per forward/backward
    accumulation_steps: int  # micro-batches per device
    compute_s: float  # of all micro-batches [seconds]
    exchange_s: float  # of the gradients, hidden or not [seconds]
    exposed_s: float  # the part of the exchange that the backward pass does not hide [seconds]
    evaluation_s: float  # this step's share of evaluations [seconds]

    @property
    def total_s(self) -> float:
        """All of it [seconds]."""
        return self.compute_s + self.exposed_s + self.evaluation_s


def step_time(batch: int, devices: int, work: Work, cluster: Cluster) -> TradeoffStep | None:
    """A step of a batch on some devices; None if they cannot share it, or no speed is known."""
    per_device, rest = divmod(batch, devices)
    micro_batch = None if rest or not per_device else work.speeds.largest_fit(per_device)
    if micro_batch is None:
        return None
    places, hardware = cluster.places(devices), cluster.hardware
    is_full = places.per_node == cluster.per_node
    slower_us = (hardware.host_us_per_example or 0.0) if is_full else 0.0
    micro_s = work.speeds.micro_s(micro_batch) + micro_batch * slower_us / 1e6
    backward_s = BACKWARD_SHARE * micro_s
    exchanged = exchange(work.num_bytes, backward_s, places, hardware, work.algorithm)
    compute_s = per_device // micro_batch * micro_s
    return TradeoffStep(
        micro_batch=micro_batch,
        accumulation_steps=per_device // micro_batch,
        compute_s=compute_s,
        exchange_s=exchanged.total_s,
        exposed_s=exchanged.exposed_s,
        evaluation_s=work.evaluation_share * compute_s,
    )


def time_points(
    steps: dict[int, float], work: Work, cluster: Cluster, devices: int | None = None
) -> pd.DataFrame:
    """Every batch on every number of devices.

    Args:
        steps: to the target, by batch.
        work: what is trained.
        cluster: where.
        devices: None for each number that can share a batch on one node, or with equally many,
            more than half, of each node's devices.

    Returns:
        A row each: `global_batch`, `devices`, `steps`, `step_s`, those of `Step`, `time_s`,
        `device_hours`, `exchange_share` (exposed, of the time), `evaluation_share`.
    """
    rows: list[dict[str, Any]] = []
    for batch, num_steps in steps.items():
        numbers = range(1, batch // work.speeds.smallest + 1) if devices is None else [devices]
        for number in numbers:
            step = None if batch % number else step_time(batch, number, work, cluster)
            is_sparse = 2 * cluster.places(number).per_node <= cluster.per_node < number
            if step is None or (is_sparse and devices is None):
                continue
            sizes = {"global_batch": batch, "devices": number, "steps": num_steps}
            rows.append({**sizes, "step_s": step.total_s, **asdict(step)})
    found = pd.DataFrame(rows)
    if rows:
        found["time_s"] = found["steps"] * found["step_s"]
        found["device_hours"] = found["time_s"] * found["devices"] / 3600
        found["exchange_share"] = found["exposed_s"] / found["step_s"]
        found["evaluation_share"] = found["evaluation_s"] / found["step_s"]
    return found


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps to the target by batch, with draws of their means."""

    means: dict[int, float]  # by batch
    draws: Mapping[int, Array]  # of the means, by batch; empty without two seeds of every batch
    notes: tuple[str, ...] = ()  # what limits them


def steps_to_target(reached: pd.DataFrame) -> Steps:
    """Steps by batch, from runs as `to_target` returns them, a row for each batch and seed.

    ValueError if no batch reached the target in all of its runs.
    """
    is_missed = ~reached.groupby("global_batch")["reached_target"].transform("all")
    missed = ", ".join(f"{b:,}" for b in sorted(reached["global_batch"][is_missed].unique()))
    usable = reached[~is_missed].assign(outcome="finished")
    if usable.empty:
        msg = (
            f"every run of a batch must reach the target; got no such batch among {missed}. "
            "Choose a lower --target, or train longer."
        )
        raise ValueError(msg)
    cells = Replicates.from_runs(usable, ["global_batch"], "steps_to_target")
    batches = [int(b) for b in cells.points["global_batch"]]
    rng = make_rng()
    free = np.where(cells.is_coarse, np.inf, cells.counts - 1)
    known = zip(batches, cells.means, cells.mean_variances, free, strict=True)
    draws = {} if cells.no_interval else {
        batch: _draw_means(mean, variance, freedom, rng) for batch, mean, variance, freedom in known
    }  # fmt: skip
    notes = [f"Left out, as not every run reached the target: batch {missed}."] if missed else []
    if "epochs_to_target" in usable:
        taken, unit = evaluations_to_target(usable)
        if soon := ", ".join(f"{batch:,}" for batch in taken.index[taken < FEWEST_EVALUATIONS]):
            span = "an epoch" if unit == "epochs" else "the time between two"
            notes.append(
                f"Reached in fewer than {FEWEST_EVALUATIONS} {unit} at batch {soon}: where in "
                f"{span} is not known, so these times may be up to {span} too long, which is more "
                "than their intervals say."
            )
    means = dict(zip(batches, map(float, cells.means), strict=True))
    kept, wild = drop_wild(usable, ["global_batch"], "steps_to_target")
    if wild:
        less = steps_to_target(kept).means
        without = ", ".join(f"{less[b]:,.0f} steps at {b:,}" for b in less if less[b] != means[b])
        notes.append(f"{capitalize(wild)}; without, {without}.")
    return Steps(means, draws, tuple(notes))


def _draw_means(mean: float, variance: float, free: float, rng: np.random.Generator) -> Array:
    """Draws of a batch's mean whose central 95 % are Student's interval, in logarithms.

    Each batch's interval comes from the spread of its own seeds, which few seeds tell poorly; the
    spread at other batches is no help.
    """
    drawn = rng.standard_normal(DRAWS) if free == np.inf else rng.standard_t(free, DRAWS)
    away = np.sqrt(variance) / mean * drawn
    return mean * np.exp(np.clip(away, -_FARTHEST, _FARTHEST))


@dataclass(frozen=True, slots=True)
class Tradeoff:
    """Time against device-hours."""

    #: every batch on every number of devices, with the columns of `time_points`.
    everything: pd.DataFrame
    #: a row for each batch, at its fastest or on the devices asked for; with intervals.
    best: pd.DataFrame
    #: rows that no other beats in both time and device-hours, the cheapest first.
    frontier: pd.DataFrame
    knee: pd.Series  # the row with the least product of time and device-hours
    #: the fastest row on at most twice the knee's devices; where none of these is faster, the
    #: cheapest that is; None without any.
    doubled: pd.Series | None
    #: time after the doubling, of the time before, with its interval.
    time_share: tuple[float, float, float]
    hours_share: tuple[float, float, float]  # device-hours likewise


def find_tradeoff(
    steps: Steps, work: Work, cluster: Cluster, devices: int | None = None
) -> Tradeoff:
    """Compare all batches on all numbers of devices; `devices` limits the table to one number.

    ValueError if no batch can be shared by so many devices.
    """
    everything = time_points(steps.means, work, cluster)
    asked = everything if devices is None else time_points(steps.means, work, cluster, devices)
    if asked.empty:
        smallest, largest = work.speeds.smallest, max(steps.means)
        msg = (
            "a batch must be a multiple of a micro-batch of known speed; got none such for "
            f"{work.speeds}. Give --examples-per-s at micro-batches that divide the batches."
        )
        if devices is not None:
            msg = (
                "--devices must share a batch in micro-batches of known speed, which are "
                f"{smallest} or more: at most {largest // smallest:,} for batch {largest:,}, "
                f"dividing it; got --devices {devices}. Name fewer, or give --examples-per-s at "
                "smaller micro-batches."
            )
        raise ValueError(msg)
    if devices is not None and devices not in set(everything["devices"]):
        everything = pd.concat([everything, asked], ignore_index=True)
    cheapest = everything.iloc[everything["device_hours"].argmin()]
    examples = everything["steps"] * everything["global_batch"]
    everything["examples_ratio"] = examples / (cheapest["steps"] * cheapest["global_batch"])
    ratio = everything["device_hours"] / cheapest["device_hours"]
    everything["machine_ratio"] = ratio / everything["examples_ratio"]
    for place, end in enumerate(("low", "high")):  # both are in proportion to the steps
        ends = {b: percentile_interval(d)[place] / steps.means[b] for b, d in steps.draws.items()}
        share = everything["global_batch"].map(ends)
        everything[f"time_{end}_s"] = everything["time_s"] * share
        everything[f"device_hours_{end}"] = everything["device_hours"] * share
    shown = everything if devices is None else everything[everything["devices"] == devices]
    fastest = shown.groupby("global_batch")["time_s"].idxmin()
    ordered = everything.sort_values(["device_hours", "time_s"])
    is_beaten = ordered["time_s"] >= ordered["time_s"].cummin().shift(fill_value=np.inf)
    frontier = ordered[~is_beaten]
    knee = frontier.iloc[(frontier["time_s"] * frontier["device_hours"]).argmin()]
    within = everything[everything["devices"] <= 2 * knee["devices"]]
    fastest_within = within.iloc[within["time_s"].argmin()]
    faster = everything[everything["time_s"] < knee["time_s"]]
    cheapest_faster = None if faster.empty else faster.iloc[faster["device_hours"].argmin()]
    doubled = fastest_within if fastest_within["time_s"] < knee["time_s"] else cheapest_faster
    return Tradeoff(
        everything=everything,
        best=everything.loc[fastest].reset_index(drop=True),
        frontier=frontier,
        knee=knee,
        doubled=doubled,
        time_share=_share_of_knee(steps, knee, doubled, "time_s"),
        hours_share=_share_of_knee(steps, knee, doubled, "device_hours"),
    )


def _share_of_knee(
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
