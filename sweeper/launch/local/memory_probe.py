"""The largest micro-batch that fits, found by trying: each try is a process of its own.

A try takes a run's place on the machine, so that it sees the memory that the run will have; an
out-of-memory there harms nothing. What is found is shared by all runs of a kind, also of other
sweeps in the same results folder.
"""

import json
import signal
import time
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

from sweeper.launch.workers import LOOPBACK, RankProcess, deadline_of, fresh_process
from sweeper.planning.tasks import Event, Task
from sweeper.spec.outcomes import Outcome
from sweeper.spec.run_spec import RunSpec
from sweeper.spec.warnings import slow_split
from sweeper.spec.worker_args import CROWDED_EXIT, TOO_MUCH_EXIT, Try
from sweeper.store.attempt import Attempt
from sweeper.store.memory_cache import Fit, Probes

_LOOK_AGAIN_S = 0.5
_TICK_S = 0.05


@dataclass(slots=True, kw_only=True)
class _Trying:
    task: Task
    micro_batch: int
    process: RankProcess
    deadline: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """What came of a look at the tries.

    Attributes:
        free: runs whose try has ended: their places are free.
        ready: runs to be looked at again, the free ones first.
        said: sentences for the user.
    """

    free: Sequence[Task] = ()
    ready: Sequence[Task] = ()
    said: Sequence[str] = ()


@dataclass(slots=True)
class Fitting:
    """Chooses micro-batches for the runs that leave it to us.

    A try does not share its data with the runs: of a shared array it would touch, and so count, a
    part only.

    Attributes:
        probes: what is known already.
        context: where processes come from.
    """

    probes: Probes
    context: ForkServerContext
    _tries: list[_Trying] = field(default_factory=list)
    _held: list[Task] = field(default_factory=list)
    _hopeless: set[str] = field(default_factory=set)
    _count: Counter[str] = field(default_factory=Counter)
    _looked_at: float = 0.0

    @property
    def holds_runs(self) -> bool:
        """Whether runs wait for a try."""
        return bool(self._tries or self._held)

    def fit(self, spec: RunSpec) -> Fit:
        """What is known of a run's micro-batch; where tries say nothing, the limit rules."""
        fit = self.probes.fit(spec)
        if fit.to_try is not None and self.probes.key(spec) in self._hopeless:
            return Fit(spec=spec, source="limit")
        return fit

    def begin(self, task: Task, micro_batch: int, place: Mapping[str, str]) -> bool:
        """Try a micro-batch for a run, at its place; False if the run is to wait for another try.

        Args:
            task: the run.
            micro_batch: what to try [examples].
            place: variables that say which devices are the run's.
        """
        spec = task.spec
        if self._is_tried(spec) or not self.probes.claim(spec):
            self._held.append(task)
            return False
        told = Try(
            config=spec.config.resolved,
            micro_batch=micro_batch,
            folder=str(self.probes.scratch(spec)),
            threads=spec.config.threads,
            environment={"GLOO_SOCKET_IFNAME": LOOPBACK, **place},
            limit_gib=self.probes.allowed_gib(spec),
            share_of_gpu=self.probes.share_of_gpu(spec),
        )
        process = fresh_process(_enter, told, self.context)
        self._tries.append(
            _Trying(
                task=task,
                micro_batch=micro_batch,
                process=process,
                deadline=deadline_of(spec),
            )
        )
        return True

    def look(self) -> Looked:
        """Take in the tries that have ended."""
        free: list[Task] = []
        said: list[str] = []
        for trying in list(self._tries):
            if trying.process.exitcode is None and not self._is_late(trying):
                continue
            self._tries.remove(trying)
            free.append(trying.task)
            said += self._conclude(trying)
        if not free and time.monotonic() - self._looked_at < _LOOK_AGAIN_S:
            return Looked()
        self._looked_at = time.monotonic()
        ready, self._held = [*free, *self._held], []
        return Looked(free=free, ready=ready, said=said)

    def learn(self, attempt: Attempt, outcome: Outcome) -> None:
        """Remember it if a run took more memory than its try had: no other shall repeat it."""
        spec = attempt.spec
        if not self.probes.has_limit(spec):
            return
        micro, limit = spec.split.micro_batch, spec.config.memory_limit_gib
        peak = (attempt.record() or {}).get("peak_memory_gib")
        if outcome == Outcome.OUT_OF_MEMORY:
            self.probes.note_over(spec, micro, limit_gib=None, why="a run ran out of memory")
        elif limit is not None and peak is not None and peak > limit:
            self.probes.note_over(spec, micro, limit_gib=limit, why=f"a run took {peak:.3f} GiB")

    def stop(self) -> None:
        """End all tries."""
        for trying in self._tries:
            _end(trying.process)
            self.probes.release(trying.task.spec)
        self._tries.clear()

    def _is_tried(self, spec: RunSpec) -> bool:
        key = self.probes.key(spec)
        return any(self.probes.key(trying.task.spec) == key for trying in self._tries)

    def _is_late(self, trying: _Trying) -> bool:
        if trying.deadline is None or time.monotonic() < trying.deadline:
            return False
        _end(trying.process)
        return True

    def _conclude(self, trying: _Trying) -> list[str]:
        """Note what came of a try; what to say of it."""
        spec, micro = trying.task.spec, trying.micro_batch
        key, folder = self.probes.key(spec), self.probes.scratch(spec)
        self._count[key] += 1
        try:
            measured = _measured(trying, folder)
        except _Inconclusive as why:
            self._hopeless.add(key)
            kept = self.probes.keep_log(spec)
            self.probes.release(spec)
            return [
                f"Whether micro-batches fit into {self.probes.memory(spec)} could not be tried: "
                f"{why}. micro_batch_limit alone rules. Log: {kept}"
            ]
        if measured:
            self.probes.note_took(spec, micro, **measured)
        else:
            self.probes.note_over(spec, micro, limit_gib=self.probes.allowed_gib(spec))
        self.probes.release(spec)
        found = self.probes.fit(spec)
        if found.to_try is not None or found.refusal:
            return []
        slow = slow_split(found.spec, found.bounds)
        return [
            f"Micro-batches of up to {found.spec.split.micro_batch} fit into "
            f"{self.probes.memory(spec)}, of those that make the batch; tries: {self._count[key]}.",
            *([f"Warning: {slow}"] if slow else []),
        ]


def _measured(trying: _Trying, folder: Path) -> dict[str, Any]:
    """What a try left; nothing if it took too much.

    Raises:
        _Inconclusive: if it ended for another reason.
    """
    code = trying.process.exitcode
    is_over = trying.deadline is not None and time.monotonic() >= trying.deadline
    if code in {TOO_MUCH_EXIT, -signal.SIGKILL} and not is_over:
        return {}
    if code:
        why = "other processes use the GPU" if code == CROWDED_EXIT else f"it exited with {code}"
        raise _Inconclusive("it took longer than timeout_s" if is_over else why)
    return json.loads((folder / "measured.json").read_text())


class _Inconclusive(Exception):
    """A try ended for other reasons than memory; the text says which."""


def _end(process: RankProcess) -> None:
    process.kill()
    process.join()


def _enter(told: Try) -> None:
    """First function of a try's process."""
    from lightning_modules.worker import try_micro_batch  # imports torch

    try_micro_batch(told)


def fitted(task: Task, fitting: Fitting) -> Generator[Event, None, Fit]:
    """Try micro-batches until one is known for a run, doing nothing else.

    Args:
        task: the run.
        fitting: of this machine.

    Yields:
        An event per tick.
    """
    try:
        while (fit := fitting.fit(task.spec)).to_try is not None:
            fitting.begin(task, fit.to_try, {})
            while fitting.holds_runs:
                time.sleep(_TICK_S)
                yield Event(said=fitting.look().said)
    finally:
        fitting.stop()
    return fit
