"""The queue launcher: makes a ticket for each run, then follows the workers or exits."""

import secrets
import time
from collections.abc import Generator

from sweeper.launch.queue.queue import Queue, Ticket
from sweeper.launch.ranks import LocalRanks
from sweeper.planning.plan import Event, Task, Tasks
from sweeper.spec.outcomes import MAY_GO_ON, Outcome
from sweeper.spec.sentences import several
from sweeper.spec.values import Settings, Switch
from sweeper.store.attempt import Attempt, End, attempt_state
from sweeper.store.ledger import Ledger

_LOOK_EVERY_S = 1.0


class QueueSettings(Settings):
    """The settings of conf/hydra/launcher/queue.yaml, which explains each key."""

    detach: Switch


def run_in_queue(tasks: Tasks, ledger: Ledger, *, detach: bool) -> Generator[Event]:
    """Queue runs for workers, then follow all until they end.

    Runs that are queued already are only followed. ValueError if a run needs several machines.
    """
    queue, source, is_open = Queue(ledger), iter(tasks), True
    left: dict[str, Task] = {}
    shown: set[tuple[str, int]] = set()
    while is_open or left:
        new = list[Task]()
        for task in source:
            if task is None:
                break
            LocalRanks().check(task.spec)
            new.append(task)
        else:
            is_open = False
        if new:
            left |= {task.spec.run_id: task for task in new}
            yield _add(new, queue, ledger)
        if detach and not is_open:
            yield Event(is_detached=True)
            return
        began = [known for known in ledger.active() if known[0] in left and known not in shown]
        shown.update(began)
        attempts = [attempt for known in began if (attempt := Attempt.load(ledger, *known))]
        ended = _find_ends(left, queue, ledger)
        left = {run_id: task for run_id, task in left.items() if run_id not in ended}
        yield Event(elsewhere=attempts, ended=ended)
        look_at = time.monotonic() + _LOOK_EVERY_S * (not ended)
        while time.monotonic() < look_at:
            time.sleep(_LOOK_EVERY_S / 5)
            yield Event()


def _add(tasks: list[Task], queue: Queue, ledger: Ledger) -> Event:
    """Queue the runs that are not queued."""
    known, name = queue.list_runs(), secrets.token_hex(6)
    new = [task for task in tasks if task.spec.run_id not in known]
    for task in new:
        ticket = Ticket(
            run_id=task.spec.run_id,
            config=task.spec.config.resolved,
            number=task.number,
            from_scratch=task.from_scratch,
            submission=name,
        )
        queue.add(ticket)
    text = (
        f"Queued {several(len(new), 'run')}{' more' if known else ''}. `sweeper work results="
        f"{ledger.results}` trains them, on each machine where you start it; `sweeper status "
        f"{ledger.results} --watch` follows them. Ctrl-C leaves them queued."
    )
    return Event(said=[text], queued=[task.spec.run_id for task in tasks])


def _find_ends(left: dict[str, Task], queue: Queue, ledger: Ledger) -> dict[str, End]:
    """The runs that have ended: without a result only once they are no longer queued."""
    queued, rows = queue.list_runs(), ledger.ended()  # in this order, as a row comes first
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
