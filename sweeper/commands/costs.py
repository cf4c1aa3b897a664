"""What a sweep will cost: device-hours, and when it ends on the places of this machine."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from pathlib import Path

from sweeper.console.runs import duration
from sweeper.launch.local.slots import Machine, Slots, find_device
from sweeper.planning.budget import (
    Account,
    check_budget,
    left_hours,
    spent_hours,
    unsettled_runs,
)
from sweeper.planning.plan import Plan, Task
from sweeper.planning.seconds import Seconds, Speeds
from sweeper.spec.run_memory import CPU, Device
from sweeper.spec.run_spec import RunSpec
from sweeper.spec.sentences import several
from sweeper.store.ledger import Ledger

_PARTS = ("start", "steps", "exchange", "evaluations", "checkpoints")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """The predicted cost of runs that have no result yet.

    Attributes:
        device_hours: seconds times ranks, over the runs whose time is known [hours].
        ends_in_s: time until the last run ends on this machine; None if the time of any run is not
            known, or if they need GPUs that are not here [seconds].
        parts_s: time of the runs whose time is known, by activity [seconds].
        num_runs: number of all runs [count].
        num_unknown: number of runs whose time is not known [count].
        device: the device that they run on.
        price: of a device-hour; None if not given.
    """

    device_hours: float
    ends_in_s: float | None
    parts_s: Mapping[str, float]
    num_runs: int
    num_unknown: int
    device: str
    price: float | None

    @property
    def totals(self) -> dict[str, float | None]:
        """The totals for scripts; null if the time of a run is not known, or no price is given."""
        hours = None if self.num_unknown else self.device_hours
        cost = hours * self.price if hours is not None and self.price else None
        return {"device_hours": hours, "ends_in_s": self.ends_in_s, "cost": cost}

    def describe(self, results: Path) -> str:
        """The bill in sentences; empty if there is nothing to do."""
        sentences: list[str] = []
        if known := self.num_runs - self.num_unknown:
            parts = ", ".join(f"{part} {duration(s)}" for part, s in self.parts_s.items() if s)
            hours = describe_hours(self.device_hours, self.price)
            ends = f", {duration(self.ends_in_s)} on this machine" if self.ends_in_s else ""
            sentences.append(f"{several(known, 'run')} will take {hours}{ends} ({parts}).")
        if self.num_unknown:
            sentences.append(
                f"The time of {several(self.num_unknown, 'run')} is not known: no run of the same "
                f"kind has finished on {self.device} in {results}. `sweeper plan --probe` with the "
                "same overrides trains the first steps of one run of each kind and keeps its speed."
            )
        return " ".join(sentences)


def bill(runs: Sequence[tuple[RunSpec, Seconds | None]], machine: Machine) -> Bill:
    """The bill of runs in the order in which they start."""
    known = [(spec, seconds) for spec, seconds in runs if seconds]
    is_known = len(known) == len(runs)
    totals = [(spec, seconds.total) for spec, seconds in known]
    on_gpus = any(spec.config.accelerator == "gpu" for spec, _ in runs)
    is_elsewhere = on_gpus and machine.device == CPU
    return Bill(
        device_hours=sum(spec.split.world_size * total for spec, total in totals) / 3600,
        ends_in_s=_ends_in_s(totals, machine) if is_known and runs and not is_elsewhere else None,
        parts_s={part: sum(seconds.parts[part] for _, seconds in known) for part in _PARTS},
        num_runs=len(runs),
        num_unknown=len(runs) - len(known),
        device="a single type of GPU" if is_elsewhere else machine.device.kind,
        price=runs[0][0].config.price if runs else None,
    )


def describe_hours(device_hours: float, price: float | None) -> str:
    """Device-hours, and their cost if their price is known."""
    cost = f", cost {device_hours * price:.2f}" if price else ""
    return f"{device_hours:.3g} device-hours{cost}"


def _ends_in_s(runs: Sequence[tuple[RunSpec, float]], machine: Machine) -> float:
    """Time until the last run ends, if each starts as soon as there is room for it [seconds]."""
    slots, now, running = Slots(machine), 0.0, list[tuple[float, str]]()
    for spec, total_s in runs:
        while slots.take(spec) is None:
            now, ended = heappop(running)
            slots.give_back(ended)
        heappush(running, (now + total_s, spec.run_id))
    return max(end for end, _ in running)


def with_predictions(specs: Sequence[RunSpec], speeds: Speeds) -> list[RunSpec]:
    """The runs with their predicted times, if known, which their rows will record."""
    known = [speeds.of(spec) for spec in specs]
    return [
        spec.with_facts(predicted=seconds.predicted if seconds else None)
        for spec, seconds in zip(specs, known, strict=True)
    ]


@dataclass(slots=True)
class Predictions:
    """Predictions from the latest rows, which are re-read for at most a twentieth of the time.

    Args:
        ledger: of the runs.
    """

    ledger: Ledger
    _device: Device | None = None
    _speeds: Speeds | None = None
    _read_at: float = 0.0
    _reading_s: float = 0.0

    def known(self) -> Speeds | None:
        """The speeds known by now; None if there are none."""
        self._device = self._device or find_device(runs=1)
        now = time.monotonic()
        if self._speeds is None or now - self._read_at >= 20 * self._reading_s:
            self._speeds = Speeds(self.ledger, self._device)
            self._read_at = time.monotonic()
            self._reading_s = self._read_at - now
        return self._speeds if self._speeds.are_known else None


def with_prediction(task: Task, speeds: Speeds) -> Task:
    """The task with its run's predicted time, if known; an earlier prediction is kept."""
    seconds = None if task.spec.facts.predicted else speeds.of(task.spec)
    return (
        replace(task, spec=task.spec.with_facts(predicted=seconds.predicted)) if seconds else task
    )


def account_of(planned: Plan, ledger: Ledger) -> Account | None:
    """The account of what a sweep may spend, which covers all its runs; None without a budget.

    Raises:
        ValueError: if the budget does not cover them, or their time is not known.
    """
    config = planned.specs[0].config
    if (allowed := config.budget) is None:
        return None
    options = {"retry": config.retry, "rerun": config.rerun, "code": config.code}
    speeds = Speeds(ledger, find_device(runs=1))
    runs = with_predictions(unsettled_runs(planned, **options), speeds)
    hours = {run.run_id: left_hours(run, ledger, from_scratch=bool(config.rerun)) for run in runs}
    spent = spent_hours(planned.specs, ledger)
    check_budget(config, hours, runs, spent=spent)
    return Account(left=allowed - spent, hours=hours)
