"""A worker: takes queued runs until every one has ended, or a signal stops it.

It waits while others train, and takes over from those that died. SLURM's jobs are workers too.
"""

import math
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import FrameType

from sweeper.launch.first_ends import SharedFirstEnds
from sweeper.launch.local.launcher import run_here
from sweeper.launch.local.readiness import check_ready
from sweeper.launch.local.slots import Machine
from sweeper.launch.ranks import Ranks
from sweeper.launch.tickets import Ticket, Tickets
from sweeper.planning.plan import Event, Task, Tasks
from sweeper.spec.outcomes import CUT_SHORT, DONE, MAY_GO_ON, RUN_FAILED, Outcome
from sweeper.spec.run_spec import run_spec
from sweeper.store.attempt import Attempt, End, Open, attempt_state, recover_attempt
from sweeper.store.ledger import Ledger

_LOOK_EVERY_S = 1.0


class FirstSignal:
    """The first signal that asks this process to stop."""

    def __init__(self) -> None:
        self.number: signal.Signals | None = None
        self.at = 0.0

    def record(self, number: int, frame: FrameType | None) -> None:
        """The signal handler."""
        del frame
        if self.number is None:
            self.number, self.at = signal.Signals(number), time.monotonic()


class Worker:
    """Trains runs that have tickets; `say` shows a sentence.

    After a signal its runs are saved and given back, however long that takes.
    """

    def __init__(
        self, ledger: Ledger, tickets: Tickets, signals: FirstSignal, say: Callable[[str], None]
    ) -> None:
        self._ledger, self._tickets, self._signals, self._say = ledger, tickets, signals, say
        self._running: dict[str, Attempt] = {}
        self._started: set[str] = set()
        self._taken: dict[str, SharedFirstEnds] = {}  # not ended yet, and how the first ends were
        self._has_refused = False

    def work(self, machine: Machine) -> int:
        """Train until every queued run has ended, or what is left cannot be trained here.

        Returns the exit code; ValueError if a ticket was written by another version of this code.
        """
        self._train(self._pull(machine), machine)
        for ticket in self._tickets.read_all().values():
            self._claim_task(ticket)  # none may start any more: then its row says so
        left = self._tickets.latest_numbers()
        if left and self._signals.number is not None:
            return CUT_SHORT
        return RUN_FAILED if left or self._has_refused else DONE

    def _pull(self, machine: Machine) -> Iterator[Task | None]:
        """The attempts to make, each determined when it is taken; None while others train."""
        unfit: set[str] = set()
        while queued := [known for known in self._tickets.in_order() if known[0] not in unfit]:
            for run_id, number in queued:
                ticket = self._tickets.read(run_id, number) if run_id not in self._taken else None
                task = self._claim_task(ticket) if ticket else None
                try:
                    check_ready([task.spec.config] if task else [], machine)
                except ValueError as error:
                    unfit.add(run_id)
                    del self._taken[run_id]
                    self._say(f"Left to other workers: {task and task.spec.point}. {error}")
                    continue
                if task:
                    yield task
            look_at = time.monotonic() + _LOOK_EVERY_S
            while time.monotonic() < look_at:
                yield None

    def _train(self, tasks: Tasks, machine: Machine, ranks: Ranks | None = None) -> None:
        events = run_here(
            tasks,
            self._ledger,
            machine,
            why_stopped=self._why_stopped,
            may_start=lambda: self._signals.number is None,
            ranks=ranks,
            refuse_early=False,  # a run that cannot start gets a row
        )
        with closing(events):
            for event in events:
                self._handle(event)
                if self._must_stop():
                    return

    def _claim_task(self, ticket: Ticket) -> Task | None:
        """The attempt to make now; None if the run has ended or another process is training it.

        If the first runs of its command failed alike, a row says that it is not started.
        """
        run_id, number = ticket.run_id, self._next_attempt(ticket)
        if number is None:
            return None
        spec = run_spec(ticket.spec.config)  # the same run: reading the ticket's spec checks its id
        first_ends = SharedFirstEnds(self._tickets.folder / ticket.submission / "first_ends")
        if why := first_ends.why_stop:
            self._has_refused = True
            if attempt := Attempt.begin(spec, self._ledger, number):
                attempt.end(End(outcome=Outcome.PREEMPTED, reason=why), self._ledger)
            self._tickets.remove(run_id)  # repeating the command queues it again
            return None
        self._taken[run_id] = first_ends
        scratch = ticket.from_scratch and number == ticket.number
        return Task(spec=spec, number=number, from_scratch=scratch)

    def _next_attempt(self, ticket: Ticket) -> int | None:
        """The attempt to make; None if the run has ended or another process is training it."""
        run_id = ticket.run_id
        number = max(ticket.number, self._ledger.last_attempt(run_id))
        folder = self._ledger.attempt_folder(run_id, number)
        if not folder.exists():
            return number
        state = attempt_state(self._ledger, run_id, number)
        if state is Open.HELD and not self._held_before(folder):
            return None
        is_open = isinstance(state, Open)
        end = recover_attempt(self._ledger, run_id, number) if is_open else state
        if end is None:  # another process has taken it over
            return None
        if end.outcome not in MAY_GO_ON:
            self._tickets.remove(run_id)
            return None
        return number + 1

    def _held_before(self, folder: Path) -> bool:
        """Whether this worker itself held an attempt before it was started again."""
        del folder
        return False

    def _handle(self, event: Event) -> None:
        for text in event.said:
            self._say(text)
        for attempt in event.began:
            self._say(f"start    {attempt.spec.point}")
            self._running[attempt.spec.run_id] = attempt
            self._started.add(attempt.spec.run_id)
        for run_id, end in event.ended.items():
            first_ends, is_ours = self._taken.pop(run_id), run_id in self._running
            if attempt := self._running.pop(run_id, None):
                self._say(f"{end.outcome:<8} {attempt.spec.point}  {end.reason}".rstrip())
                is_early = attempt.is_early_failure(end) and not attempt.spec.config.keep_going
                first_ends.add(run_id, end.reason, is_early=is_early)
            is_cut_short = end.outcome == Outcome.PREEMPTED and self._signals.number is not None
            if end.outcome not in MAY_GO_ON or (is_ours and not is_cut_short):
                self._tickets.remove(run_id)

    @property
    def _grace_s(self) -> float:
        return math.inf

    def _must_stop(self) -> bool:
        """After a signal, stop runs gracefully; True once all ended or the grace time is over."""
        if self._signals.number is None:
            return False
        for attempt in self._running.values():
            if not attempt.has_graceful_stop:
                attempt.request_graceful_stop()
        return not self._running or time.monotonic() - self._signals.at > self._grace_s

    def _why_stopped(self) -> str:
        is_over = self._signals.number == signal.SIGALRM
        return f"its worker {'had worked for its time' if is_over else 'was ended'}: stopped"
