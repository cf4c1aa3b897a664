"""The processes of one run on this machine: started from a warm fork server, watched, stopped."""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from typing import Any, Protocol

from sweeper.spec.outcomes import Outcome
from sweeper.spec.run_spec import RunSpec
from sweeper.spec.worker_args import UNWRITABLE_EXIT, Rank, signals_of_launcher
from sweeper.store.attempt import Attempt, end_of_record

#: The network interface of this machine to itself.
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
#: What multiprocessing says of a process whose fork server has gone.
_SERVER_GONE = 255
_LEAVE_S, _LOOK_S = 10.0, 0.02
#: Signals that come from outside; the others (SIGSEGV, SIGBUS, ...) are the run's own doing.
_FROM_OUTSIDE = {signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT}


class RankProcess(Protocol):
    """The process of a rank, here or elsewhere; multiprocessing's own are such."""

    @property
    def exitcode(self) -> int | None:
        """None while it runs, below 0 if it was ended by a signal."""
        ...

    def kill(self) -> None:
        """Make it end."""
        ...

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has ended, for at most this long [seconds]."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A run under way.

    Attributes:
        attempt: the attempt, held by this process.
        ranks: its processes, by rank.
        deadline: when it is timed out, on the monotonic clock; None for never.
        settle_s: how much later than others a rank's end may come to be known [seconds].
    """

    attempt: Attempt
    ranks: Sequence[RankProcess]
    deadline: float | None
    settle_s: float = 0.0


class Ranks(Protocol):
    """Where the ranks of runs are."""

    def check(self, spec: RunSpec) -> None:
        """Raise ValueError if a run's layout is not to be had."""
        ...

    def start(
        self, attempt: Attempt, context: ForkServerContext, environment: Mapping[str, str]
    ) -> Running:
        """Start one process per rank."""
        ...


class RanksHere:
    """All ranks on this machine."""

    def check(self, spec: RunSpec) -> None:
        """See that a run needs this machine alone.

        Raises:
            ValueError: if it needs more nodes.
        """
        if (nodes := spec.config["num_nodes"]) > 1:
            msg = (
                f"num_nodes must be 1 with hydra/launcher=local; got num_nodes={nodes}. "
                "Use hydra/launcher=slurm, or start the command with torchrun on each machine."
            )
            raise ValueError(msg)

    def start(
        self, attempt: Attempt, context: ForkServerContext, environment: Mapping[str, str]
    ) -> Running:
        """Start one process per rank."""
        spec = attempt.spec
        ranks: list[RankProcess] = []
        for rank in range(spec.split.world_size):
            told = Rank(
                folder=str(attempt.folder),
                checkpoint=str(attempt.checkpoint),
                rank=rank,
                local_rank=rank,
                node_rank=0,
                world_size=spec.split.world_size,
                threads=spec.config["threads"],
                environment={"GLOO_SOCKET_IFNAME": LOOPBACK, **environment},
            )
            ranks.append(started(told, context))
        return Running(attempt=attempt, ranks=ranks, deadline=deadline_of(spec))


def started(rank: Rank, context: ForkServerContext) -> RankProcess:
    """A process of this machine that trains one rank."""
    return fresh_process(enter, rank, context)


def fresh_process(
    target: Callable[[Any], None], told: object, context: ForkServerContext
) -> RankProcess:
    """A process from the fork server, which Ctrl-C and the like shall not reach."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in signals_of_launcher()}
    try:
        forkserver.ensure_running()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    process = context.Process(target=target, args=(told,), daemon=False)
    process.start()
    return process


def deadline_of(spec: RunSpec) -> float | None:
    """When a run that starts now is timed out, on the monotonic clock; None for never."""
    timeout_s = spec.config["timeout_s"]
    return time.monotonic() + timeout_s if timeout_s else None


def enter(rank: Rank) -> None:
    """First function of a worker process; the fork server has preloaded the imports."""
    from lightning_modules.worker import work  # imports torch

    work(rank)


def end_of(run: Running, why_left: Callable[[], str]) -> tuple[Outcome, str] | None:
    """How a run ended, or None while it has not.

    Args:
        run: under way until now.
        why_left: the reason if it was asked to leave and did.
    """
    codes = [process.exitcode for process in run.ranks]
    if run.settle_s and any(codes):
        time.sleep(run.settle_s)
        codes = [process.exitcode for process in run.ranks]
    if failed := [(rank, code) for rank, code in enumerate(codes) if code]:
        stop([run])
        return _failure(run.attempt, *_first_cause(run.attempt, failed))
    if None not in codes:
        record = run.attempt.record()
        assert record is not None, "a worker that exits with 0 leaves its record"
        return end_of_record(record, why_left)
    if run.deadline and time.monotonic() > run.deadline:
        stop([run])
        timeout_s = run.attempt.spec.config["timeout_s"]
        return Outcome.TIMED_OUT, f"ran past timeout_s={timeout_s:g}"
    return None


def leave(running: Sequence[Running]) -> None:
    """Have runs save after the step they are in and leave.

    Waits for each no longer than it took to do what would be lost otherwise, and at most 10 s; not
    at all for those that were asked before, nor for ranks of which one failed. A second Ctrl-C ends
    the waiting.
    """
    waiting = [
        (run, time.monotonic() + min(_LEAVE_S, run.attempt.unsaved_s()))
        for run in running
        if not run.attempt.is_asked_to_leave
    ]
    for run, _ in waiting:
        run.attempt.ask_to_leave()
    with contextlib.suppress(KeyboardInterrupt):
        while waiting:
            time.sleep(_LOOK_S)
            now = time.monotonic()
            waiting = [
                (run, deadline)
                for run, deadline in waiting
                if now < deadline and _is_whole([rank.exitcode for rank in run.ranks])
            ]


def _is_whole(codes: Sequence[int | None]) -> bool:
    """Whether ranks run and none has failed: the others would wait for it."""
    return None in codes and not any(codes)


def stop(running: Sequence[Running]) -> None:
    """End the processes of runs; what they are at is lost back to where they were saved."""
    processes = [process for run in running for process in run.ranks]
    for process in processes:
        process.kill()
    for process in processes:
        process.join()


def _first_cause(attempt: Attempt, failed: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """The rank that failed by itself: others fail because it has gone."""
    codes = dict(failed)
    if by_signal := [rank for rank, code in failed if code < 0]:
        return by_signal[0], codes[by_signal[0]]
    first = attempt.first_record(codes)
    rank = first[0] if first else failed[0][0]
    return rank, codes[rank]


def _failure(attempt: Attempt, rank: int, code: int) -> tuple[Outcome, str]:
    where = f" (rank {rank})" if attempt.spec.split.world_size > 1 else ""
    if code < 0:
        return _killed(signal.Signals(-code), where)
    if record := attempt.record(rank):
        return Outcome(record["outcome"]), record["reason"] + where
    return _without_record(attempt, code, where)


def _without_record(attempt: Attempt, code: int, where: str) -> tuple[Outcome, str]:
    if code == _SERVER_GONE:
        return Outcome.PREEMPTED, f"the fork server was ended from outside{where}"
    if code > UNWRITABLE_EXIT:
        why = os.strerror(code - UNWRITABLE_EXIT)
        return Outcome.FAILED, f"{attempt.folder} could not be written: {why}{where}"
    return Outcome.FAILED, f"the worker exited with {code}{where}; see its log"


def _killed(by: signal.Signals, where: str) -> tuple[Outcome, str]:
    if by in _FROM_OUTSIDE:
        return Outcome.PREEMPTED, f"the worker was ended by {by.name} from outside{where}"
    return Outcome.FAILED, f"the worker died by {by.name}{where}; see its log"
