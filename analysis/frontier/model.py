"""Time and device-hours to a target, for a batch on a number of devices. Pure."""

from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd

from analysis.frontier.machines import Cluster, Speeds
from sweeper.planning.exchange import BACKWARD_SHARE, Algorithm, exchange


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What is trained, apart from the batch.

    Attributes:
        num_bytes: of all gradients, as they are exchanged.
        evaluation_share: time of evaluations, as a fraction of the time of training on a device.
        speeds: of a device.
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


def step_time(batch: int, devices: int, work: Work, cluster: Cluster) -> Step | None:
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
    return Step(
        micro_batch=micro_batch,
        accumulation_steps=per_device // micro_batch,
        compute_s=compute_s,
        exchange_s=exchanged.total_s,
        exposed_s=exchanged.exposed_s,
        evaluation_s=work.evaluation_share * compute_s,
    )


def points(
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
