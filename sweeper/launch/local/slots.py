"""How many runs fit on a machine: by cores and threads on CPUs, by devices on GPUs."""

import os
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from sweeper.spec.run_memory import CPU, Device
from sweeper.spec.run_spec import RunSpec
from sweeper.spec.values import Count, Settings


class LocalSettings(Settings):
    """The settings of conf/hydra/launcher/local.yaml, which explains each key."""

    jobs: Count | Literal["auto"]
    runs_per_gpu: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The resources that runs share; `gpus` are names for CUDA_VISIBLE_DEVICES."""

    cores: int
    gpus: Sequence[str] = ()
    jobs: int | str = "auto"
    runs_per_gpu: int = 1
    device: Device = CPU


@dataclass(slots=True)
class Slots:
    """The slots of a machine; runs take a slot and return it."""

    machine: Machine
    _taken: dict[str, tuple[int, Sequence[str]]] = field(  # by run id: threads and GPUs
        default_factory=dict[str, tuple[int, Sequence[str]]]
    )

    @property
    def has_room(self) -> bool:
        """Whether there is room for the smallest run."""
        on_gpus = bool(self.machine.gpus)
        return not self._taken or self._fits(int(not on_gpus), int(on_gpus))

    def take(self, spec: RunSpec) -> Mapping[str, str] | None:
        """Take room for a run: the variables that it needs, or None if there is no room now.

        An idle machine takes any run, however large.
        """
        on_gpus = bool(self.machine.gpus) and spec.config.accelerator != "cpu"
        ranks = spec.split.world_size
        threads = 0 if on_gpus else ranks * spec.config.threads
        if self._taken and not self._fits(threads, ranks if on_gpus else 0):
            return None
        gpus = self._free_gpus()[:ranks] if on_gpus else []
        self._taken[spec.run_id] = threads, gpus
        return {"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if on_gpus else {}

    def give_back(self, run_id: str) -> None:
        """Return the room of a run that has ended."""
        del self._taken[run_id]

    def _fits(self, threads: int, num_gpus: int) -> bool:
        if num_gpus > len(self._free_gpus()):
            return False
        if self.machine.jobs != "auto":
            return len(self._taken) < int(self.machine.jobs)
        return threads + sum(taken for taken, _ in self._taken.values()) <= self.machine.cores

    def _free_gpus(self) -> list[str]:
        """The GPUs with room for a run, those with the fewest runs first."""
        runs = Counter(gpu for _, gpus in self._taken.values() for gpu in gpus)
        free = [gpu for gpu in self.machine.gpus if runs[gpu] < self.machine.runs_per_gpu]
        return sorted(free, key=lambda gpu: runs[gpu])


def inspect_machine(*, jobs: int | str, runs_per_gpu: int) -> Machine:
    """The resources of this process; GPUs are listed by the driver's tool, without using CUDA."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = query_gpus("index") if visible is None else list(filter(None, visible.split(",")))
    device = find_device(runs=runs_per_gpu) if gpus else CPU
    return Machine(cores=cores, gpus=gpus, jobs=jobs, runs_per_gpu=runs_per_gpu, device=device)


def find_device(*, runs: int) -> Device:
    """The device that runs train on here: the first GPU, or the CPU if there is none."""
    for line in query_gpus("name,memory.total"):
        kind, _, memory_mib = line.rpartition(",")
        memory_gib = int(memory_mib) / 1024 if memory_mib.strip().isdecimal() else None
        return Device(kind=kind.strip() or "gpu", memory_gib=memory_gib, runs=runs)
    return CPU


def query_gpus(query: str) -> list[str]:
    """The lines that the driver's own tool prints, a line per GPU; empty without that tool."""
    try:
        command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits"]
        return subprocess.check_output(
            command, text=True, stderr=subprocess.DEVNULL, timeout=30
        ).splitlines()
    except (OSError, subprocess.SubprocessError):
        return []
