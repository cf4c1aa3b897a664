"""Runs under torchrun, on one or several machines: rank 0's process leads, the others follow.

Each of torchrun's processes is the parent of a rank. The process of rank 0 composes configs,
claims attempts and publishes rows, as on one machine. It writes into torchrun's store which attempt
comes next, and the others write there how their ranks ended.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from itertools import count
from typing import Any

from sweeper.launch.fork_server import open_fork_server, start_process, train_rank
from sweeper.launch.local.launcher import run_here
from sweeper.launch.local.slots import Machine, inspect_machine
from sweeper.launch.ranks import LOOPBACK, Running, WhyStopped, network_interface, worker_failure
from sweeper.launch.shared_memory import shared_folder
from sweeper.launch.torchrun.group import Group, Messages, open_messages, torchrun_group
from sweeper.planning.plan import Event, Tasks
from sweeper.spec.outcomes import DONE, RUN_FAILED
from sweeper.spec.run_spec import RunSpec
from sweeper.spec.worker_args import WorkerArgs
from sweeper.store.attempt import Attempt, End
from sweeper.store.ledger import Ledger

_POLL_S = 0.05
_SETTLE_S = 1.0
_PATIENCE_S = 15
_JOIN_S = 10.0
_END = "end"


def add_layout(words: Sequence[str], group: Group) -> list[str]:
    """A command line with the number of devices and nodes added, unless it already has them."""
    named = {word.partition("=")[0].lstrip("+") for word in words}
    layout = {"devices": group.devices, "num_nodes": group.num_nodes}
    added = [f"{key}={value}" for key, value in layout.items() if key not in named]
    # next to the first override: Hydra needs its overrides to be contiguous
    first = next((n for n, w in enumerate(words) if "=" in w and w[0] != "-"), len(words))
    return [*words[:first], *added, *words[first:]]


def lead_or_follow(command: Callable[[], None]) -> None:
    """Run the command in the process of rank 0, follow it in the others; exit with its code."""
    group = torchrun_group()
    assert group is not None, "torchrun started this process"
    if group.rank:
        sys.exit(_follow_leader(group))
    sys.argv[1:] = add_layout(sys.argv[1:], group)
    code = RUN_FAILED
    try:
        command()
        code = DONE
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else bool(end.code)
        raise
    finally:
        open_messages().set(_END, str(int(code)))


def run_with_torchrun(tasks: Tasks, ledger: Ledger, group: Group) -> Generator[Event]:
    """Execute runs one after the other, each with a rank in every process of the group.

    All machines must see the ledger's folder under the same path. ValueError if a run's layout is
    not that of the group.
    """
    ledger = Ledger(ledger.results.resolve())
    device = inspect_machine(jobs=1, runs_per_gpu=1).device
    machine = Machine(cores=os.cpu_count() or 1, jobs=1, device=device)
    yield from run_here(tasks, ledger, machine, ranks=_Ranks(group))


class _Ranks:
    """Starts a rank in each process of the group."""

    def __init__(self, group: Group) -> None:
        self._group, self._messages = group, open_messages()
        self._numbers = count()

    def check(self, spec: RunSpec) -> None:
        group, config = self._group, spec.config
        asked = (config.devices, config.num_nodes)
        if asked != (group.devices, group.num_nodes) or group.world_size % group.devices:
            msg = (
                "devices and num_nodes must match the ranks that torchrun started; got "
                f"devices={asked[0]} num_nodes={asked[1]}, WORLD_SIZE={group.world_size} "
                f"LOCAL_WORLD_SIZE={group.devices}. Remove both: they follow from torchrun."
            )
            raise ValueError(msg)

    def start(self, attempt: Attempt, environment: Mapping[str, str]) -> Running:
        number = next(self._numbers)
        run = {"folder": str(attempt.folder), "threads": attempt.spec.config.threads}
        self._messages.set(str(number), json.dumps(run))
        own = start_process(train_rank, _worker_args(self._group, run, environment))
        others = [
            _RemoteRank(self._messages, number, rank) for rank in range(1, self._group.world_size)
        ]
        return Running(attempt=attempt, processes=[own, *others], failure=_explain_failure)


def _explain_failure(run: Running, why_stopped: WhyStopped) -> End:
    """The end of a failed run, once the other processes have had time to report their ranks."""
    time.sleep(_SETTLE_S)
    return worker_failure(run, why_stopped)


class _RemoteRank:
    """A rank whose parent is another process of the group."""

    sentinel = None

    def __init__(self, messages: Messages, number: int, rank: int) -> None:
        self._messages, self._number, self._rank = messages, number, rank

    @property
    def exitcode(self) -> int | None:
        key = f"{self._number}/{self._rank}"
        return int(self._messages.get(key)) if self._messages.has(key) else None

    def kill(self) -> None:
        self._messages.set(f"{self._number}/stop", "")

    def join(self, timeout: float | None = None) -> None:
        deadline = time.monotonic() + (_JOIN_S if timeout is None else timeout)
        while self.exitcode is None and time.monotonic() < deadline:
            time.sleep(_POLL_S)


def _follow_leader(group: Group) -> int:
    """Train this process's rank of every run that rank 0 announces; return rank 0's exit code.

    torchrun passes Ctrl-C and SIGTERM on to all its processes; rank 0 then stops runs gracefully.
    """
    for number in (signal.SIGINT, signal.SIGTERM):  # rank 0 gets time to stop its run gracefully
        signal.signal(number, lambda _number, _frame: signal.alarm(_PATIENCE_S))
    open_fork_server()
    messages = open_messages()
    try:
        with shared_folder() as shared:
            for number in count():
                while not messages.has(str(number)):
                    if messages.has(_END):
                        return int(messages.get(_END))
                    time.sleep(_POLL_S)
                run = json.loads(messages.get(str(number)))
                args = _worker_args(group, run, {"SWEEPER_SHARED": str(shared)})
                process = start_process(train_rank, args)
                while process.exitcode is None:
                    if messages.has(f"{number}/stop"):
                        process.kill()
                    process.join(_POLL_S)
                messages.set(f"{number}/{group.rank}", str(process.exitcode))
    except RuntimeError:  # torch's, if the store no longer exists
        print("The process of rank 0 is gone: see its output.", file=sys.stderr)  # noqa: T201
    return RUN_FAILED


def _worker_args(
    group: Group, run: Mapping[str, Any], environment: Mapping[str, str]
) -> WorkerArgs:
    spans = group.num_nodes > 1
    interface = network_interface(group.master) if spans else {"GLOO_SOCKET_IFNAME": LOOPBACK}
    return WorkerArgs(
        **run,
        rank=group.rank,
        local_rank=group.local_rank,
        node_rank=group.node_rank,
        world_size=group.world_size,
        environment={**interface, **environment},
        master=group.master if spans else None,
    )
