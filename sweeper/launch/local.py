"""This machine: each run in fresh processes from a warm fork server, some at a time."""

import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

from sweeper.attempt import Attempt
from sweeper.domain.outcomes import Outcome
from sweeper.domain.run_spec import RunSpec
from sweeper.ledger import Ledger
from sweeper.rank import Rank

_TICK_S = 0.02
_GRACE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A run under way."""

    attempt: Attempt
    ranks: Sequence[ForkServerProcess]
    deadline: float | None

    @property
    def slots(self) -> int:
        """Threads that the run occupies [count]."""
        return len(self.ranks) * self.attempt.spec.config["threads"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What happened since the last tick: attempts that began and attempts that ended."""

    began: Sequence[Attempt] = ()
    ended: Sequence[tuple[Attempt, Outcome, str]] = ()


def run_here(specs: Sequence[RunSpec], ledger: Ledger, *, jobs: int | str) -> Iterator[Event]:
    """Run all specs, publishing each attempt's row as it ends.

    Args:
        specs: what to run, in this order.
        ledger: where the rows go.
        jobs: runs at a time, or auto: as many as the cores carry.

    Yields:
        An event per tick, empty when nothing happened, so that a caller can draw.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["sweeper.worker"])
    waiting, running = list(specs), list[Running]()
    with _shared_folder() as shared:
        try:
            while waiting or running:
                began: list[Attempt] = []
                while waiting and _has_room(waiting[0], running, jobs):
                    running.append(_start(waiting.pop(0), ledger, context, shared))
                    began.append(running[-1].attempt)
                yield Event(began=began)
                time.sleep(_TICK_S)
                ended = [(run, *end) for run in running if (end := _end_of(run))]
                for run, outcome, reason in ended:
                    running.remove(run)
                    _publish(run.attempt, outcome, reason, ledger)
                if ended:
                    yield Event(ended=[(run.attempt, outcome, why) for run, outcome, why in ended])
        finally:
            _stop(running)
            for run in running:
                reason = f"stopped after epoch {len(run.attempt.curve())}"
                _publish(run.attempt, Outcome.PREEMPTED, reason, ledger)


def _publish(attempt: Attempt, outcome: Outcome, reason: str, ledger: Ledger) -> None:
    ledger.publish(attempt.row(outcome, reason, ledger.results), attempt.curve())
    if outcome.is_result:
        attempt.checkpoint.unlink(missing_ok=True)


def _has_room(spec: RunSpec, running: Sequence[Running], jobs: int | str) -> bool:
    """Whether a run fits beside those under way; an idle machine takes any run."""
    if not running:
        return True
    if jobs != "auto":
        return len(running) < int(jobs)
    needed = spec.split.world_size * spec.config["threads"]
    return sum(run.slots for run in running) + needed <= _num_cores()


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _start(spec: RunSpec, ledger: Ledger, context: ForkServerContext, shared: Path) -> Running:
    attempt = Attempt.begin(spec, ledger)
    ranks: list[ForkServerProcess] = []
    for rank in range(spec.split.world_size):
        told = Rank(
            folder=str(attempt.folder),
            checkpoint=str(attempt.checkpoint),
            rank=rank,
            local_rank=rank,
            node_rank=0,
            world_size=spec.split.world_size,
            threads=spec.config["threads"],
            environment={"SWEEPER_SHARED": str(shared), "GLOO_SOCKET_IFNAME": _LOOPBACK},
        )
        process = context.Process(target=enter, args=(told,), daemon=True)
        process.start()
        ranks.append(process)
    timeout_s = spec.config["timeout_s"]
    deadline = time.monotonic() + timeout_s if timeout_s else None
    return Running(attempt=attempt, ranks=ranks, deadline=deadline)


def enter(rank: Rank) -> None:
    """First function of a worker process; the fork server has preloaded the imports."""
    from sweeper.worker import work  # imports torch

    work(rank)


_LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


def _end_of(run: Running) -> tuple[Outcome, str] | None:
    """How the run ended, or None while it has not."""
    codes = [process.exitcode for process in run.ranks]
    if failed := [(rank, code) for rank, code in enumerate(codes) if code]:
        _stop([run])
        return _failure(run.attempt, *failed[0])
    if None not in codes:
        record = run.attempt.record()
        assert record is not None, "a worker that exits with 0 leaves its record"
        return Outcome(record["outcome"]), record["reason"]
    if run.deadline and time.monotonic() > run.deadline:
        _stop([run])
        timeout_s = run.attempt.spec.config["timeout_s"]
        return Outcome.TIMED_OUT, f"ran past timeout_s={timeout_s:g}"
    return None


def _failure(attempt: Attempt, rank: int, code: int) -> tuple[Outcome, str]:
    if record := attempt.record(rank):
        where = f" (rank {rank})" if attempt.spec.split.world_size > 1 else ""
        return Outcome(record["outcome"]), record["reason"] + where
    how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
    return Outcome.FAILED, f"the worker of rank {rank} was {how}; see its log"


def _stop(running: Sequence[Running]) -> None:
    processes = [process for run in running for process in run.ranks]
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + _GRACE_S
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
        if process.exitcode is None:
            process.kill()
            process.join()


@contextmanager
def _shared_folder() -> Generator[Path]:
    """A folder in memory for arrays that the runs share; those of dead launchers are removed."""
    root = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path(tempfile.gettempdir())
    for left in root.glob("sweeper-*-shared"):
        if not _is_alive(int(left.name.split("-")[1])):
            shutil.rmtree(left, ignore_errors=True)
    path = root / f"sweeper-{os.getpid()}-shared"
    path.mkdir(exist_ok=True)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
