"""The processes that train a run, a process per rank: started, monitored, stopped."""

import contextlib
import fcntl
import os
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing import connection
from typing import Protocol

from sweeper.launch.fork_server import ForkServerDied, start_process, train_rank
from sweeper.launch.kernel_memory import oom_kills, out_of_memory
from sweeper.spec.outcomes import Outcome
from sweeper.spec.run_spec import RunSpec
from sweeper.spec.sentences import several
from sweeper.spec.worker_args import UNWRITABLE_EXIT, WorkerArgs
from sweeper.store.attempt import Attempt, End, end_from_record

#: The loopback network interface of this machine.
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
_SIOCGIFADDR = 0x8915  # the request for the address of a network interface
_ANY_PORT = 9  # of a datagram that is never sent
# private: multiprocessing's exit code of a process whose fork server has gone
_SERVER_GONE = 255
_GRACE_S, _TICK_S = 10.0, 0.25
# private: torch's text of a loader whose process has gone, whether or not it saw the signal
_LOST_DATA_WORKER = "DataLoader worker (pid"
#: Signals that are sent from outside; others (SIGSEGV, SIGBUS, ...) are caused by the run itself.
_SENT_FROM_OUTSIDE = {signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT}

#: Gives the reason why a run was stopped before its end.
WhyStopped = Callable[[], str]


class RankProcess(Protocol):
    """The process of a rank or of several, here or elsewhere; multiprocessing's qualify."""

    @property
    def exitcode(self) -> int | None:
        """None while it runs; negative if a signal ended it."""

    @property
    def sentinel(self) -> int | None:
        """Becomes readable when the process ends; None if only the exit code can be polled."""

    def kill(self) -> None:
        """End it at once."""

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has ended, for at most this long [seconds]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A run whose ranks are running."""

    attempt: Attempt
    processes: Sequence[RankProcess]
    #: Determines its end if a process failed, or none left a record.
    failure: "Callable[[Running, WhyStopped], End]"
    oom_kills: int = field(default_factory=oom_kills)  # when it started
    started_at: float = field(default_factory=time.monotonic)

    @property
    def codes(self) -> list[int | None]:
        """The exit codes of its processes."""
        return [process.exitcode for process in self.processes]


class Ranks(Protocol):
    """A place where the ranks of runs are started."""

    def check(self, spec: RunSpec) -> None:
        """Raise ValueError if this layout is not possible here."""

    def start(self, attempt: Attempt, environment: Mapping[str, str]) -> Running:
        """Start all ranks of a run; raise ValueError if that is not possible."""
        ...


@dataclass(frozen=True, slots=True)
class LocalRanks:
    """All ranks on this machine, a process each."""

    target: "Callable[[WorkerArgs], None]" = field(default_factory=lambda: train_rank)

    def check(self, spec: RunSpec) -> None:
        """Refuse a run that needs more nodes than this machine."""
        if (nodes := spec.config.num_nodes) > 1:
            msg = (
                f"num_nodes must be 1 with hydra/launcher=local or queue; got num_nodes={nodes}. "
                "Use hydra/launcher=slurm, or start the command with torchrun on each machine."
            )
            raise ValueError(msg)

    def start(self, attempt: Attempt, environment: Mapping[str, str]) -> Running:
        """Start a process per rank."""
        spec = attempt.spec
        first = WorkerArgs(
            folder=str(attempt.folder),
            rank=0,
            local_rank=0,
            node_rank=0,
            world_size=spec.split.world_size,
            threads=spec.config.threads,
            environment={"GLOO_SOCKET_IFNAME": LOOPBACK, **environment},
        )
        processes: list[RankProcess] = []
        try:
            for rank in range(first.world_size):
                args = replace(first, rank=rank, local_rank=rank)
                processes.append(start_process(self.target, args))
        except ForkServerDied:  # ranks already started would wait for the rest
            kill_processes(processes)
            raise
        return Running(attempt=attempt, processes=processes, failure=worker_failure)


def wait_for_exit(processes: Sequence[RankProcess]) -> None:
    """Wait until any of these processes ends, but only for a moment."""
    alive = [process for process in processes if process.exitcode is None]
    sentinels = [process.sentinel for process in alive if process.sentinel is not None]
    if sentinels:
        connection.wait(sentinels, _TICK_S)
    else:
        time.sleep(_TICK_S)


def collect_end(run: Running, why_stopped: WhyStopped) -> End | None:
    """How a run ended, None while it runs; if a rank failed, the others are killed."""
    codes, timeout_s = run.codes, run.attempt.spec.config.timeout_s
    if any(codes):
        end = run.failure(run, why_stopped)
        kill_processes(run.processes)
        return end
    if None not in codes:
        record = run.attempt.record()
        return end_from_record(record, why_stopped) if record else run.failure(run, why_stopped)
    if timeout_s and time.monotonic() - run.started_at > timeout_s:
        kill_processes(run.processes)
        return End(outcome=Outcome.TIMED_OUT, reason=f"ran past timeout_s={timeout_s:g}")
    return None


class GracefulStop:
    """Runs that were asked to checkpoint after the current step and exit.

    Each is waited for at most 10 s, and no longer than the work that would be lost took; not at all
    if it was asked before, or if a rank failed.
    """

    def __init__(self, running: Sequence[Running]) -> None:
        now = time.monotonic()
        self._deadlines = [
            (run, now + min(_GRACE_S, run.attempt.unsaved_s()))
            for run in running
            if not run.attempt.has_graceful_stop
        ]
        for run, _ in self._deadlines:
            run.attempt.request_graceful_stop()

    @property
    def announcement(self) -> Sequence[str]:
        """A sentence for the user on what is waited for; empty if nothing is."""
        runs = several(len(self._deadlines), "run")
        text = (
            f"Stopping: saving {runs} at the next step, which takes at most {_GRACE_S:g} s. Press "
            "Ctrl-C again to stop at once and lose what was trained since the last checkpoint."
        )
        return [text] if self._deadlines else []

    @property
    def is_waited_for(self) -> bool:
        """Whether any run may still be saved in time."""
        now = time.monotonic()
        return any(now < deadline for run, deadline in self._deadlines if _may_save(run))

    @property
    def unsaved(self) -> Sequence[str]:
        """A sentence for the user on runs that are not saved; empty if all are."""
        unsaved = sum(_may_save(run) for run, _ in self._deadlines)
        runs = several(unsaved, "run")
        text = f"{runs} not saved in time: what was trained since the last checkpoint is lost."
        return [text] if unsaved else []

    def wait(self) -> None:
        """Wait for all of them; a second Ctrl-C ends the waiting."""
        with contextlib.suppress(KeyboardInterrupt):
            while self.is_waited_for:
                wait_for_exit([process for run, _ in self._deadlines for process in run.processes])


def _may_save(run: Running) -> bool:
    return None in run.codes and not any(run.codes)


def kill_processes(processes: Sequence[RankProcess]) -> None:
    """Kill processes, and wait until they are gone; work since the last checkpoint is lost."""
    for process in processes:
        process.kill()
    for process in processes:
        process.join()


def worker_failure(run: Running, why_stopped: WhyStopped) -> End:
    """The end of a run with a failed worker: that of the rank which caused the others to fail."""
    del why_stopped
    codes = {rank: code for rank, code in enumerate(run.codes) if code} or {0: 0}
    rank = next((rank for rank, code in codes.items() if code < 0), None)
    if rank is None:
        first = run.attempt.first_record(codes)
        rank = first[0] if first else min(codes)
    folder = run.attempt.folder
    where = f" (rank {rank})" if run.attempt.spec.split.world_size > 1 else ""
    code, record = codes[rank], run.attempt.record(rank)
    is_killed = code == -signal.SIGKILL or (record and _LOST_DATA_WORKER in record["reason"])
    outcome = Outcome.FAILED
    if is_killed and oom_kills() > run.oom_kills:
        what = "the worker" if code < 0 else "a data worker"
        outcome = Outcome.OUT_OF_MEMORY
        reason = f"the kernel killed {what}{where}: {out_of_memory()}"
    elif -code in _SENT_FROM_OUTSIDE:
        outcome, name = Outcome.PREEMPTED, signal.Signals(-code).name
        reason = f"the worker was killed by {name} from outside{where}"
    elif code < 0:
        reason = f"the worker crashed with {signal.Signals(-code).name}{where}; see its log"
    elif record:
        outcome, reason = Outcome(record["outcome"]), record["reason"] + where
    elif code == _SERVER_GONE:
        outcome, reason = Outcome.PREEMPTED, f"the fork server was killed from outside{where}"
    elif code > UNWRITABLE_EXIT:
        outcome, why = Outcome.PREEMPTED, os.strerror(code - UNWRITABLE_EXIT)
        reason = f"{folder} could not be written: {why}{where}"
    else:
        log = "see its log"
        if not any(folder.glob("log*.txt")):
            log = "it wrote no log: see its last output on the terminal"
        reason = f"the worker exited with {code}{where}; {log}"
    return End(outcome=outcome, reason=reason)


def network_interface(address: str) -> dict[str, str]:
    """A variable with the interface to another machine; empty if it is set or none is found."""
    if "GLOO_SOCKET_IFNAME" in os.environ:
        return {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((address, _ANY_PORT))
        own = probe.getsockname()[0]
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            with contextlib.suppress(OSError):  # of an interface without an address
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
                if socket.inet_ntoa(answer[20:24]) == own:
                    return {"GLOO_SOCKET_IFNAME": name}
    return {}
