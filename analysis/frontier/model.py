"""Time and device-hours to a target, for a batch on a number of devices. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from analysis.frontier.cluster import Cluster
from analysis.frontier.speed import Speeds
from sweeper.planning.exchange import BACKWARD_SHARE, Algorithm


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What is trained, apart from the batch.

    Attributes:
        num_bytes: of all gradients, as they are exchanged.
        evaluation_share: time of evaluations, as a fraction of the time of training on one device.
        speeds: of one device.
        algorithm: of the exchange; None: as NCCL chooses.
    """

    num_bytes: float
    evaluation_share: float
    speeds: Speeds
    algorithm: Algorithm | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """An optimizer step.

    Attributes:
        micro_batch: examples per device per forward/backward.
        accumulation_steps: micro-batches per device.
        compute_s: of all micro-batches [seconds].
        exchange_s: of the gradients, hidden or not [seconds].
        exposed_s: the part of the exchange that the backward pass does not hide [seconds].
        evaluation_s: this step's share of evaluations [seconds].
    """

    micro_batch: int
    accumulation_steps: int
    compute_s: float
    exchange_s: float
    exposed_s: float
    evaluation_s: float

    @property
    def total_s(self) -> float:
        """All of it [seconds]."""
        return self.compute_s + self.exposed_s + self.evaluation_s


def step(batch: int, devices: int, work: Work, cluster: Cluster) -> Step | None:
    """A step of a batch on some devices; None if they cannot share it, or no speed is known."""
    per_device, rest = divmod(batch, devices)
    micro_batch = None if rest or not per_device else work.speeds.fit(per_device)
    if micro_batch is None:
        return None
    alone_s = work.speeds.micro_s(micro_batch)
    is_full = cluster.in_node(devices) == cluster.per_node
    slower_us = (cluster.hardware.host_us_per_example or 0.0) if is_full else 0.0
    micro_s = alone_s + micro_batch * slower_us / 1e6
    exchanged = cluster.exchange(work.num_bytes, devices, BACKWARD_SHARE * micro_s, work.algorithm)
    compute_s = per_device // micro_batch * micro_s
    return Step(
        micro_batch=micro_batch,
        accumulation_steps=per_device // micro_batch,
        compute_s=compute_s,
        exchange_s=exchanged.total_s,
        exposed_s=exchanged.exposed_s,
        evaluation_s=work.evaluation_share * compute_s,
    )


def steps_on(batch: int, work: Work, cluster: Cluster) -> Iterator[tuple[int, Step]]:
    """A step on each number of devices that can share the batch.

    They are on one node, or use equally many, more than half, of each node's devices.
    """
    for devices in range(1, batch // work.speeds.smallest + 1):
        if devices > cluster.per_node and 2 * cluster.in_node(devices) <= cluster.per_node:
            continue
        if batch % devices == 0 and (one := step(batch, devices, work, cluster)):
            yield devices, one


def points(
    steps: dict[int, float], work: Work, cluster: Cluster, devices: int | None = None
) -> pd.DataFrame:
    """Every batch on every number of devices.

    Args:
        steps: to the target, by batch.
        work: what is trained.
        cluster: where.
        devices: None for each number that can share a batch.

    Returns:
        A row each: `global_batch`, `devices`, the columns of `Step`, `steps`, `time_s`,
        `device_hours`, `exchange_share` (exposed, of the time), `evaluation_share`.
    """
    rows: list[dict[str, float]] = []
    for batch, num_steps in steps.items():
        found = steps_on(batch, work, cluster)
        if devices is not None:
            one = step(batch, devices, work, cluster)
            found = [(devices, one)] if one else []
        for number, one in found:
            time_s = num_steps * one.total_s
            rows.append(
                {
                    "global_batch": batch,
                    "devices": number,
                    "micro_batch": one.micro_batch,
                    "accumulation_steps": one.accumulation_steps,
                    "steps": num_steps,
                    "step_s": one.total_s,
                    "exchange_s": one.exchange_s,
                    "exposed_s": one.exposed_s,
                    "time_s": time_s,
                    "device_hours": time_s * number / 3600,
                    "exchange_share": one.exposed_s / one.total_s,
                    "evaluation_share": one.evaluation_s / one.total_s,
                }
            )
    return pd.DataFrame(rows)
