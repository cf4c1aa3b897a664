"""What a sweep will cost: device-hours, and when it ends on the places of this machine."""

from collections.abc import Sequence
from heapq import heappop, heappush
from pathlib import Path

from sweeper.console.runs import duration
from sweeper.launch.local.slots import Machine, Slots
from sweeper.planning.seconds import Seconds
from sweeper.spec.run_spec import RunSpec
from sweeper.spec.sentences import several


class Bill:
    """The predicted cost of runs that have no result yet.

    Args:
        runs: in the order in which they start, with their time; None if it is not known.
        machine: this machine.

    Attributes:
        device_hours: seconds times ranks, over the runs whose time is known [hours].
        ends_in_s: time until the last run ends on this machine; None if the time of any run is not
            known, or if they need GPUs that are not here [seconds].
    """

    def __init__(self, runs: Sequence[tuple[RunSpec, Seconds | None]], machine: Machine) -> None:
        known = [(spec, seconds) for spec, seconds in runs if seconds]
        on_gpus = any(spec.config.accelerator == "gpu" for spec, _ in runs)
        is_elsewhere = on_gpus and not machine.device.is_gpu
        is_end_known = 0 < len(runs) == len(known) and not is_elsewhere
        self.device_hours = sum(spec.split.world_size * s.total for spec, s in known) / 3600
        self.ends_in_s = _end_s(known, machine) if is_end_known else None
        self._times, self._num_unknown = [seconds for _, seconds in known], len(runs) - len(known)
        self._device = "a single type of GPU" if is_elsewhere else machine.device.kind
        self._price = runs[0][0].config.price if runs else None

    @property
    def totals(self) -> dict[str, float | None]:
        """The totals for scripts; null if the time of a run is not known, or no price is given."""
        hours = None if self._num_unknown else self.device_hours
        cost = hours * self._price if hours is not None and self._price else None
        return {"device_hours": hours, "ends_in_s": self.ends_in_s, "cost": cost}

    def describe(self, results: Path) -> str:
        """The bill in sentences; empty if there is nothing to do."""
        sentences: list[str] = []
        if times := self._times:
            cost = f", cost {self.device_hours * self._price:.2f}" if self._price else ""
            ends = f", {duration(self.ends_in_s)} on this machine" if self.ends_in_s else ""
            sentences.append(
                f"{several(len(times), 'run')} will take {self.device_hours:.3g} device-hours{cost}"
                f"{ends} (start {duration(sum(time.start for time in times))}, "
                f"steps {duration(sum(time.steps for time in times))}, "
                f"evaluations and checkpoints {duration(sum(time.between for time in times))})."
            )
        if self._num_unknown:
            sentences.append(
                f"The time of {several(self._num_unknown, 'run')} is not known: no run of the same "
                f"kind has finished on {self._device} in {results}. `sweeper plan --probe` with "
                "the same overrides trains the first steps of a run of each kind and keeps its "
                "speed."
            )
        return " ".join(sentences)


def _end_s(runs: Sequence[tuple[RunSpec, Seconds]], machine: Machine) -> float:
    """Time until the last run ends, if each starts as soon as there is room for it [seconds]."""
    slots, now, running = Slots(machine), 0.0, list[tuple[float, str]]()
    for spec, seconds in runs:
        while slots.take(spec) is None:
            now, ended = heappop(running)
            slots.give_back(ended)
        heappush(running, (now + seconds.total, spec.run_id))
    return max(end for end, _ in running)
