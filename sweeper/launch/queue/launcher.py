"""The follower: queues runs for workers, then follows their rows, wherever the workers are."""

import secrets
import time
from collections.abc import Generator, Mapping
from typing import Protocol

from sweeper.launch.queue.queue import Queue
from sweeper.launch.ranks import LocalRanks
from sweeper.planning.plan import Event, Task, Tasks
from sweeper.spec.outcomes import MAY_GO_ON, Outcome
from sweeper.spec.sentences import several
from sweeper.spec.values import Settings, Switch
from sweeper.store.attempt import Attempt, End, Open, attempt_state
from sweeper.store.ledger import Ledger

_LOOK_EVERY_S, _TICK_S = 1.0, 0.2


class QueueSettings(Settings):
    """The settings of conf/hydra/launcher/queue.yaml, which explains each key."""

    detach: Switch


class Place(Protocol):
    """Where queued runs find their workers."""

    look_every_s: float
    is_ours: bool  # whether its workers are the command's own, rather than anyone's

    def add(self, tasks: list[Task], *, is_open: bool) -> Generator[Event, None, list[Task]]:
        """Queue runs, and return those that were refused; more may follow while it is open."""
        ...

    def look(self) -> list[str]:
        """See to it that no run waits in vain; sentences for the user."""
        ...

    def list_runs(self) -> set[str]:
        """The ids of the queued runs."""
        ...


def follow(
    tasks: Tasks, ledger: Ledger, place: Place, *, detach: bool, stays: str = ""
) -> Generator[Event]:
    """Queue runs, then follow all until they end; Ctrl-C leaves them queued.

    `stays` is said if the command cannot be detached, as results decide which runs follow.
    """
    source, is_open = iter(tasks), True
    new, left = list[Task](), dict[str, Task]()
    shown: dict[str, int] = {}
    while is_open or left:
        for task in source:
            if task is None:
                break
            new.append(task)
        else:
            is_open = False
        if new:
            left |= {task.spec.run_id: task for task in new}
            new = yield from place.add(new, is_open=is_open)
            for task in new:
                del left[task.spec.run_id]
            new = new if is_open else []  # later tasks depend on them
        if detach and not is_open:
            yield Event(is_detached=True)
            return
        if detach and stays:
            yield Event(said=[stays])
            stays = ""
        said = place.look()
        began = [(i, n) for i, n in ledger.active() if i in left and n > shown.get(i, 0)]
        shown.update(began)
        attempts = [attempt for known in began if (attempt := Attempt.load(ledger, *known))]
        ended = _find_ends(left, place, ledger)
        left = {run_id: task for run_id, task in left.items() if run_id not in ended}
        back = [i for i in left if i in shown and not _is_running(ledger, i, shown[i])]
        ours, others = (attempts, []) if place.is_ours else ([], attempts)
        yield Event(began=ours, elsewhere=others, ended=ended, queued=back, said=said)
        look_at = time.monotonic() + place.look_every_s * (not ended)
        while time.monotonic() < look_at:
            time.sleep(_TICK_S)
            yield Event()


def _is_running(ledger: Ledger, run_id: str, number: int) -> bool:
    return attempt_state(ledger, run_id, number) is Open.HELD


def _find_ends(left: Mapping[str, Task], place: Place, ledger: Ledger) -> dict[str, End]:
    """The runs that have ended: without a result only once they are no longer queued."""
    queued, rows = place.list_runs(), ledger.ended()  # in this order, as a row comes first
    ended: dict[str, End] = {}
    for run_id, task in left.items():
        row = rows.get(run_id)
        if row and row.attempt >= task.number:
            state = attempt_state(ledger, run_id, row.attempt)
            if isinstance(state, End) and (run_id not in queued or state.outcome not in MAY_GO_ON):
                ended[run_id] = state
        elif run_id not in queued and not ledger.attempt_folder(run_id, task.number).exists():
            ended[run_id] = End(outcome=Outcome.PREEMPTED, reason="its ticket was removed")
    return ended


def run_in_queue(tasks: Tasks, ledger: Ledger, *, detach: bool) -> Generator[Event]:
    """Queue runs for `sweeper work`, then follow all until they end.

    Runs that are queued already are only followed. ValueError if a run needs several machines.
    """
    return follow(tasks, ledger, _AnyWorker(ledger), detach=detach)


class _AnyWorker:
    """Workers that anyone starts."""

    look_every_s, is_ours = _LOOK_EVERY_S, False

    def __init__(self, ledger: Ledger) -> None:
        self._queue = Queue(ledger)
        self.list_runs = self._queue.list_runs

    def add(self, tasks: list[Task], *, is_open: bool) -> Generator[Event, None, list[Task]]:
        del is_open
        for task in tasks:
            LocalRanks().check(task.spec)
        known, results = self._queue.list_runs(), self._queue.results
        new = [task for task in tasks if task.spec.run_id not in known]
        self._queue.add(new, secrets.token_hex(6))
        text = (
            f"Queued {several(len(new), 'run')}{' more' if known else ''}. `sweeper work results="
            f"{results}` trains them, on each machine where you start it; `sweeper status "
            f"{results} --watch` follows them. Ctrl-C leaves them queued."
        )
        yield Event(said=[text], queued=[task.spec.run_id for task in tasks])
        return []

    def look(self) -> list[str]:
        return []
