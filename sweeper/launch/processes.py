"""The processes of one run on this machine: started from a warm fork server, watched, stopped."""

import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.context import ForkServerContext, ForkServerProcess

from sweeper.attempt import Attempt
from sweeper.domain.outcomes import Outcome
from sweeper.rank import UNWRITABLE_EXIT, Rank

_GRACE_S = 5.0
_LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
#: Signals that come from outside; the others (SIGSEGV, SIGBUS, ...) are the run's own doing.
_FROM_OUTSIDE = {signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT}


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A run under way on this machine.

    Attributes:
        attempt: the attempt, held by this process.
        ranks: its processes, by rank.
        deadline: when it is timed out, on the monotonic clock; None for never.
    """

    attempt: Attempt
    ranks: Sequence[ForkServerProcess]
    deadline: float | None


def start(attempt: Attempt, context: ForkServerContext, environment: Mapping[str, str]) -> Running:
    """Start one process per rank."""
    spec = attempt.spec
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
            environment={"GLOO_SOCKET_IFNAME": _LOOPBACK, **environment},
        )
        process = context.Process(target=enter, args=(told,), daemon=False)
        process.start()
        ranks.append(process)
    timeout_s = spec.config["timeout_s"]
    deadline = time.monotonic() + timeout_s if timeout_s else None
    return Running(attempt=attempt, ranks=ranks, deadline=deadline)


def enter(rank: Rank) -> None:
    """First function of a worker process; the fork server has preloaded the imports."""
    from sweeper.worker import work  # imports torch

    work(rank)


def end_of(run: Running) -> tuple[Outcome, str] | None:
    """How a run ended, or None while it has not."""
    codes = [process.exitcode for process in run.ranks]
    if failed := [(rank, code) for rank, code in enumerate(codes) if code]:
        stop([run])
        return _failure(run.attempt, *_first_cause(run.attempt, failed))
    if None not in codes:
        record = run.attempt.record()
        assert record is not None, "a worker that exits with 0 leaves its record"
        return Outcome(record["outcome"]), record["reason"]
    if run.deadline and time.monotonic() > run.deadline:
        stop([run])
        timeout_s = run.attempt.spec.config["timeout_s"]
        return Outcome.TIMED_OUT, f"ran past timeout_s={timeout_s:g}"
    return None


def stop(running: Sequence[Running]) -> None:
    """End the processes of runs: asked first, made to after a grace time."""
    processes = [process for run in running for process in run.ranks]
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + _GRACE_S
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
        if process.exitcode is None:
            process.kill()
            process.join()


def _first_cause(attempt: Attempt, failed: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """The rank that failed by itself: others fail because it has gone."""
    by_signal = [(rank, code) for rank, code in failed if code < 0]
    recorded = [(rank, code) for rank, code in failed if attempt.record(rank)]
    return (by_signal or recorded or list(failed))[0]


def _failure(attempt: Attempt, rank: int, code: int) -> tuple[Outcome, str]:
    where = f" (rank {rank})" if attempt.spec.split.world_size > 1 else ""
    if code < 0:
        return _killed(signal.Signals(-code), where)
    if code > UNWRITABLE_EXIT:
        why = os.strerror(code - UNWRITABLE_EXIT)
        return Outcome.FAILED, f"{attempt.folder} could not be written: {why}{where}"
    if record := attempt.record(rank):
        return Outcome(record["outcome"]), record["reason"] + where
    return Outcome.FAILED, f"the worker exited with {code}{where}; see its log"


def _killed(by: signal.Signals, where: str) -> tuple[Outcome, str]:
    if by in _FROM_OUTSIDE:
        return Outcome.PREEMPTED, f"the worker was ended by {by.name} from outside{where}"
    return Outcome.FAILED, f"the worker died by {by.name}{where}; see its log"
