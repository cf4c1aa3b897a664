"""How many runs fit on a machine: by cores and threads on CPUs, by devices on GPUs."""

import os
import subprocess
from collections import defaultdict
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from sweeper.launch.local.mps import mps
from sweeper.launch.local.sharing import Share, Sharing, has_room_beside
from sweeper.spec.memory import CPU, Device
from sweeper.spec.outcomes import Outcome
from sweeper.spec.run_spec import RunSpec
from sweeper.spec.values import Count, Settings
from sweeper.store.attempt import Attempt
from sweeper.store.ledger import Ledger


class LocalSettings(Settings):
    """The settings of conf/hydra/launcher/local.yaml, which explains each key."""

    jobs: Count | Literal["auto"]
    runs_per_gpu: Count | Literal["auto"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The resources that runs share; `gpus` are names for CUDA_VISIBLE_DEVICES."""

    cores: int
    gpus: Sequence[str] = ()
    jobs: int | str = "auto"
    runs_per_gpu: int | str = 1
    device: Device = CPU


@dataclass(frozen=True, slots=True)
class _Place:
    threads: int
    gpus: tuple[str, ...]
    share: Share


@dataclass(slots=True)
class Slots:
    """The slots of a machine; runs take one and return it.

    Attributes:
        machine: the machine that has these slots.
        sharing: decides which runs share a GPU; if None, any `runs_per_gpu` runs may.
    """

    machine: Machine
    sharing: Sharing | None = None
    _taken: dict[str, _Place] = field(default_factory=dict[str, _Place])

    @property
    def has_room(self) -> bool:
        """Whether there is room for the smallest run."""
        if not self._taken:
            return True
        on_gpus = bool(self.machine.gpus)
        return self._fits(0 if on_gpus else 1, self._free_gpus(1, None), int(on_gpus))

    def take(self, spec: RunSpec) -> Mapping[str, str] | None:
        """Take room for a run: the variables that it needs, or None if there is no room now.

        An idle machine takes any run, however large.
        """
        on_gpus = bool(self.machine.gpus) and spec.config.accelerator != "cpu"
        ranks = spec.split.world_size
        threads = 0 if on_gpus else ranks * spec.config.threads
        share = self._share(spec) if on_gpus else Share("", 1)
        gpus = self._free_gpus(ranks, share) if on_gpus else ()
        if self._taken and not self._fits(threads, gpus, ranks if on_gpus else 0):
            return None
        self._taken[spec.run_id] = _Place(threads, gpus, share)
        return {"CUDA_VISIBLE_DEVICES": ",".join(gpus), **share.environment} if on_gpus else {}

    def give_back(self, run_id: str) -> None:
        """Return the room of a run that has ended."""
        del self._taken[run_id]

    def is_shared(self, spec: RunSpec) -> bool:
        """Whether other runs may be on the GPU of a run that has a slot."""
        return self.sharing is not None and self._taken[spec.run_id].share.runs > 1

    def learn(self, attempt: Attempt, outcome: Outcome, *, is_crowded: bool) -> None:
        """Store what a run took of its GPU, or that it had too little memory beside others."""
        if self.sharing and is_crowded:
            self.sharing.refuse(attempt)
        elif self.sharing:
            self.sharing.learn(attempt, outcome)

    def take_notes(self) -> list[str]:
        """New remarks for the user."""
        return self.sharing.take_notes() if self.sharing else []

    def _share(self, spec: RunSpec) -> Share:
        if self.sharing is None:
            return Share("", int(self.machine.runs_per_gpu))
        return self.sharing.of(spec)

    def _fits(self, threads: int, gpus: Sequence[str], gpus_needed: int) -> bool:
        if self.machine.jobs != "auto":
            return len(self._taken) < int(self.machine.jobs)
        busy = sum(place.threads for place in self._taken.values())
        return busy + threads <= self.machine.cores and len(gpus) >= gpus_needed

    def _free_gpus(self, ranks: int, share: Share | None) -> tuple[str, ...]:
        """One GPU per rank: the least occupied with room for this share, or with None, for any."""
        on: dict[str, list[Share]] = defaultdict(list)
        for place in self._taken.values():
            for gpu in place.gpus:
                on[gpu].append(place.share)
        load = {gpu: len(on[gpu]) for gpu in self.machine.gpus}
        free = [gpu for gpu in self.machine.gpus if has_room_beside(on[gpu], share)]
        chosen = sorted(free, key=lambda gpu: load[gpu])[:ranks]
        return tuple(chosen if self._taken else chosen or self.machine.gpus[:ranks])


@contextmanager
def open_slots(machine: Machine, ledger: Ledger, folder: Path) -> Generator[Slots]:
    """The slots of a machine; with runs_per_gpu=auto, runs share GPUs until the end of the block.

    Args:
        machine: the machine that has these slots.
        ledger: the runs' ledger, in whose folder their use of GPUs is stored.
        folder: a private folder that exists until the end of the block.
    """
    if machine.runs_per_gpu != "auto" or not machine.gpus:
        yield Slots(machine)
        return
    with mps(folder) as environment:
        yield Slots(machine, Sharing(ledger.results, machine.device, environment))


def this_machine(*, jobs: int | str, runs_per_gpu: int | str) -> Machine:
    """The resources of this process; GPUs are listed by the driver's tool, without using CUDA."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    gpus = _gpus()
    runs = 1 if runs_per_gpu == "auto" else int(runs_per_gpu)  # micro-batches fit a run alone
    device = this_device(runs=runs) if gpus else CPU
    return Machine(cores=cores, gpus=gpus, jobs=jobs, runs_per_gpu=runs_per_gpu, device=device)


def this_device(*, runs: int) -> Device:
    """The device that runs train on here: the first GPU, or the CPU if there is none."""
    for line in nvidia_smi("name,memory.total"):
        kind, _, memory_mib = line.rpartition(",")
        known = memory_mib.strip().isdecimal()
        return Device(
            kind=kind.strip() or "gpu",
            memory_gib=int(memory_mib) / 1024 if known else None,
            runs=runs,
        )
    return CPU


def _gpus() -> tuple[str, ...]:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return tuple(name for name in visible.split(",") if name)
    return tuple(nvidia_smi("index"))


def nvidia_smi(query: str) -> list[str]:
    """The lines that the driver's own tool prints, one per GPU; empty without that tool."""
    try:
        listed = subprocess.run(
            ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return listed.stdout.splitlines()
