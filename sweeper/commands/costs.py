"""What a sweep will cost: device-hours, and when it ends on the places of this machine."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from pathlib import Path

from sweeper.console.runs import duration
from sweeper.launch.local.slots import Machine, Slots
from sweeper.planning.seconds import Seconds
from sweeper.spec.run_spec import RunSpec
from sweeper.spec.sentences import several


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
            cost = f", cost {self.device_hours * self.price:.2f}" if self.price else ""
            ends = f", {duration(self.ends_in_s)} on this machine" if self.ends_in_s else ""
            hours = f"{self.device_hours:.3g} device-hours{cost}{ends}"
            sentences.append(f"{several(known, 'run')} will take {hours} ({parts}).")
        if self.num_unknown:
            sentences.append(
                f"The time of {several(self.num_unknown, 'run')} is not known: no run of the same "
                f"kind has finished on {self.device} in {results}. `sweeper plan --probe` with the "
                "same overrides trains the first steps of a run of each kind and keeps its speed."
            )
        return " ".join(sentences)


def bill(runs: Sequence[tuple[RunSpec, Seconds | None]], machine: Machine) -> Bill:
    """The bill of runs in the order in which they start."""
    known = [(spec, seconds) for spec, seconds in runs if seconds]
    on_gpus = any(spec.config.accelerator == "gpu" for spec, _ in runs)
    is_elsewhere = on_gpus and not machine.device.is_gpu
    is_end_known = 0 < len(runs) == len(known) and not is_elsewhere
    return Bill(
        device_hours=sum(spec.split.world_size * time.total for spec, time in known) / 3600,
        ends_in_s=_end_s(known, machine) if is_end_known else None,
        parts_s={
            "start": sum(time.start for _, time in known),
            "steps": sum(time.steps for _, time in known),
            "evaluations and checkpoints": sum(time.between for _, time in known),
        },
        num_runs=len(runs),
        num_unknown=len(runs) - len(known),
        device="a single type of GPU" if is_elsewhere else machine.device.kind,
        price=runs[0][0].config.price if runs else None,
    )


def _end_s(runs: Sequence[tuple[RunSpec, Seconds]], machine: Machine) -> float:
    """Time until the last run ends, if each starts as soon as there is room for it [seconds]."""
    slots, now, running = Slots(machine), 0.0, list[tuple[float, str]]()
    for spec, seconds in runs:
        while slots.take(spec) is None:
            now, ended = heappop(running)
            slots.give_back(ended)
        heappush(running, (now + seconds.total, spec.run_id))
    return max(end for end, _ in running)
