"""Memory probes: the largest micro-batch that fits, each candidate probed in its own process.

A probe takes a run's slot on the machine, so that it sees the memory that the run will have; an
out-of-memory there harms nothing. What is found is shared by all runs of a kind, also of other
sweeps in the same results folder. A run that exceeds its memory all the same resumes with half.
"""

import json
import signal
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

from sweeper.launch.fork_server import ForkServerDied, start_process
from sweeper.launch.ranks import LOOPBACK, RankProcess, deadline_of
from sweeper.planning.plan import Task
from sweeper.spec.batch import smaller_micro_batch
from sweeper.spec.method_checks import gradient_span
from sweeper.spec.outcomes import Outcome
from sweeper.spec.run_spec import RunSpec, run_spec
from sweeper.spec.warnings import slow_split
from sweeper.spec.worker_args import GPU_BUSY_EXIT, OVER_MEMORY_EXIT, ProbeArgs
from sweeper.store.attempt import Attempt
from sweeper.store.memory_cache import Fit, MemoryCache

_LOOK_S = 1.0


@dataclass(slots=True, kw_only=True)
class _Probe:
    task: Task
    micro_batch: int
    process: RankProcess
    deadline: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """New findings of the probes since the last call.

    `free` are runs whose probe has ended: their slots are free. `ready` are runs to be looked
    at again, the free ones first; `said` are sentences for the user.
    """

    free: Sequence[Task] = ()
    ready: Sequence[Task] = ()
    said: Sequence[str] = ()


@dataclass(slots=True)
class MemoryProber:
    """Chooses micro-batches for the runs that leave it to us.

    A probe does not share its data with the runs: of a shared array it would touch, and so count, a
    part only.
    """

    memory: MemoryCache
    context: ForkServerContext
    _probes: list[_Probe] = field(default_factory=list)
    _held: list[Task] = field(default_factory=list)
    _inconclusive: set[str] = field(default_factory=set)
    _count: Counter[str] = field(default_factory=Counter)
    _looked_at: float = 0.0

    @property
    def holds_runs(self) -> bool:
        """Whether runs wait for a probe."""
        return bool(self._probes or self._held)

    @property
    def processes(self) -> Sequence[RankProcess]:
        """Of the probes."""
        return [probe.process for probe in self._probes]

    def fit(self, spec: RunSpec) -> Fit:
        """What is known about a run's micro-batch; without a finding micro_batch_limit decides."""
        fit = self.memory.fit(spec)
        if fit.to_probe is not None and self.memory.key(spec) in self._inconclusive:
            return Fit(spec=spec, source="limit")
        return fit

    def start(self, task: Task, micro_batch: int, slot: Mapping[str, str]) -> bool:
        """Probe a micro-batch with a slot's variables; False if the run is to wait for another."""
        spec = task.spec
        if self._is_probed(spec) or not self.memory.claim(spec):
            self._held.append(task)
            return False
        args = ProbeArgs(
            config=spec.config.resolved,
            micro_batch=micro_batch,
            folder=str(self.memory.probe_folder(spec)),
            threads=spec.config.threads,
            environment={"GLOO_SOCKET_IFNAME": LOOPBACK, **slot},
            limit_gib=self.memory.allowed_gib(spec),
            share_of_gpu=self.memory.share_of_gpu(spec),
        )
        try:
            process = start_process(_probe, args, self.context)
        except ForkServerDied:  # the run itself will say so
            self._inconclusive.add(self.memory.key(spec))
            self.memory.release(spec)
            self._held.append(task)
            return False
        self._probes.append(
            _Probe(
                task=task,
                micro_batch=micro_batch,
                process=process,
                deadline=deadline_of(spec),
            )
        )
        return True

    def look(self) -> Findings:
        """Take in the probes that have ended."""
        free: list[Task] = []
        said: list[str] = []
        for probe in list(self._probes):
            if probe.process.exitcode is None and not self._is_late(probe):
                continue
            self._probes.remove(probe)
            free.append(probe.task)
            said += self._conclude(probe)
        if not free and time.monotonic() - self._looked_at < _LOOK_S:
            return Findings()
        self._looked_at = time.monotonic()
        ready, self._held = [*free, *self._held], []
        return Findings(free=free, ready=ready, said=said)

    def learn(self, attempt: Attempt, outcome: Outcome) -> None:
        """Remember it if a run took more memory than its probe did: no other shall repeat it."""
        spec = attempt.spec
        if not self.memory.has_limit(spec):
            return
        micro, limit = spec.split.micro_batch, spec.config.memory_limit_gib
        peak = (attempt.record() or {}).get("peak_memory_gib")
        if outcome == Outcome.OUT_OF_MEMORY:
            self.memory.record_over(spec, micro, limit_gib=None, why="a run ran out of memory")
        elif limit is not None and peak is not None and peak > limit:
            self.memory.record_over(spec, micro, limit_gib=limit, why=f"a run took {peak:.3f} GiB")

    def stop(self) -> None:
        """End all probes."""
        for probe in self._probes:
            _end(probe.process)
            self.memory.release(probe.task.spec)
        self._probes.clear()

    def _is_probed(self, spec: RunSpec) -> bool:
        key = self.memory.key(spec)
        return any(self.memory.key(probe.task.spec) == key for probe in self._probes)

    def _is_late(self, probe: _Probe) -> bool:
        if probe.deadline is None or time.monotonic() < probe.deadline:
            return False
        _end(probe.process)
        return True

    def _conclude(self, probe: _Probe) -> list[str]:
        """Remember what a probe found; what to say of it."""
        spec, micro = probe.task.spec, probe.micro_batch
        key, folder = self.memory.key(spec), self.memory.probe_folder(spec)
        self._count[key] += 1
        try:
            measured = _measured(probe, folder)
        except _Inconclusive as why:
            self._inconclusive.add(key)
            kept = self.memory.keep_log(spec)
            self.memory.release(spec)
            return [
                f"Whether micro-batches fit in {self.memory.describe(spec)} could not be probed: "
                f"{why}. Only micro_batch_limit applies. Log: {kept}"
            ]
        if measured:
            self.memory.record_fit(spec, micro, **measured)
        else:
            self.memory.record_over(spec, micro, limit_gib=self.memory.allowed_gib(spec))
        self.memory.release(spec)
        found = self.memory.fit(spec)
        if found.to_probe is not None or found.refusal:
            return []
        slow = slow_split(found.spec, found.bounds)
        return [
            f"Micro-batches of up to {found.spec.split.micro_batch}, of those that can make up the "
            f"batch, fit in {self.memory.describe(spec)}; probes: {self._count[key]}.",
            *([f"Warning: {slow}"] if slow else []),
        ]


def _measured(probe: _Probe, folder: Path) -> dict[str, Any]:
    """The measurement of a probe; nothing if it exceeded the limit."""
    code = probe.process.exitcode
    is_over = probe.deadline is not None and time.monotonic() >= probe.deadline
    if code in {OVER_MEMORY_EXIT, -signal.SIGKILL} and not is_over:
        return {}
    if code:
        why = (
            "other processes are using the GPU"
            if code == GPU_BUSY_EXIT
            else f"it exited with {code}"
        )
        raise _Inconclusive("it took longer than timeout_s" if is_over else why)
    return json.loads((folder / "measured.json").read_text())


class _Inconclusive(Exception):
    """A probe ended for other reasons than memory; the text says which."""


def _end(process: RankProcess) -> None:
    process.kill()
    process.join()


def _probe(args: ProbeArgs) -> None:
    """First function of a probe's process."""
    from lightning_modules.worker import probe_micro_batch  # imports torch

    probe_micro_batch(args)


class OomRetry:
    """Runs that resume from their checkpoint with half the micro-batch."""

    def __init__(self) -> None:
        self._notes: dict[str, str] = {}

    def note(self, run_id: str) -> str:
        """A remark for the reason of a run's end; empty if it was not retried."""
        return self._notes.get(run_id, "")

    def retry(self, attempt: Attempt) -> Task | None:
        """The next attempt at a run that ran out of memory; None if its micro-batch must stay."""
        spec = attempt.spec
        smaller = smaller_micro_batch(spec.split, spec.bn_span)
        fixed = spec.config.bn_span == "micro" or gradient_span(spec.config) is not None
        if smaller is None or fixed or spec.config.reproducible:
            return None
        self._notes[spec.run_id] = (
            f"; micro_batch={smaller} since attempt {attempt.number} ran out of memory with "
            f"micro_batch={spec.split.micro_batch}"
        )
        again = run_spec(spec.config.replaced(micro_batch=smaller))
        return Task(spec=again, number=attempt.number + 1)
