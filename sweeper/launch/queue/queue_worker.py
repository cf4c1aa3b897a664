"""A worker: takes queued runs until every one has ended for good, or a signal stops it.

It waits while others train, takes over from those that died, and waits for a results folder that is
full, read-only or away. SLURM's jobs are workers too.
"""

import math
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import FrameType

from sweeper.launch.early_failures import FirstEnds
from sweeper.launch.local.launcher import run_here
from sweeper.launch.local.preflight import check_ready
from sweeper.launch.local.slots import Machine
from sweeper.launch.queue.queue import Queue, Ticket
from sweeper.launch.ranks import LocalRanks, Ranks
from sweeper.planning.plan import Event, Task, Tasks
from sweeper.spec.outcomes import CUT_SHORT, DONE, MAY_GO_ON, RUN_FAILED, Outcome
from sweeper.spec.run_spec import run_spec
from sweeper.spec.worker_args import PROGRESS
from sweeper.store.attempt import Attempt, End, Open, attempt_state, is_cancelled
from sweeper.store.lease import holds
from sweeper.store.ledger import Ledger
from sweeper.store.recovery import recover_attempt
from sweeper.store.run_columns import metric_columns, metric_text
from sweeper.store.trunks import waits_for_start

_LOOK_EVERY_S, _TRY_AGAIN_S, _TICK_S = 1.0, 10.0, 0.2
#: Runs of others that are looked at before this worker's own are attended to.
_AT_A_LOOK = 8
#: So many attempts in a row may be killed before they save a step.
_MOST_KILLED = 3
#: The worker that ends one of so many runs merges the rows: one by its id, as none counts them all.
MERGE_EVERY = 500


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
        self, ledger: Ledger, queue: Queue, signals: FirstSignal, say: Callable[[str], None]
    ) -> None:
        self._ledger, self._queue, self._signals, self._say = ledger, queue, signals, say
        self._running: dict[str, Attempt] = {}
        self._started: set[str] = set()
        self._taken: dict[str, FirstEnds] = {}  # not ended yet, and how the first ends were
        self._unfit: set[str] = set()  # left to other workers
        self._waiting: set[str] = set()  # for shorter runs of their trunks
        self._ranks: Ranks = LocalRanks()
        self._has_refused, self._num_left = False, 0
        self._stops = Queue(ledger)  # `sweeper stop` writes there, also for SLURM's queues
        self._stop_mark, self._asked_at = self._stops.stop_mark(), time.monotonic()
        self._is_told_to_stop = False

    def work(self, machine: Machine) -> int:
        """Train until every queued run has ended, or what is left cannot be trained here.

        Returns the exit code.
        """
        while not self._work_once(machine):
            if self._signals.number is not None:
                return CUT_SHORT
        left = self._queue.list_runs()
        if left and self._signals.number is not None:
            return CUT_SHORT
        return RUN_FAILED if left or self._has_refused else DONE

    def _work_once(self, machine: Machine) -> bool:
        """Train until nothing is left for this worker; False if the folder cannot be written."""
        try:
            self._train(self._pull(machine), machine)
            if self._taken and self._signals.number is None:  # and given up: none may start
                self._refuse_rest(machine)
        except OSError as error:
            lost = Path(str(error.filename))
            if self._ledger.results not in (lost, *lost.parents):
                raise
            self._running.clear()  # ended as `_train` closed; `_held_before` knows their attempts
            self._taken.clear()
            self._say(
                f"Waiting for {self._ledger.results}, as it cannot be used: {error.strerror} "
                f"({lost}). Its runs go on from their last checkpoints; SIGTERM ends this worker."
            )
            self._wait(_TRY_AGAIN_S)
            return False
        return True

    def _refuse_rest(self, machine: Machine) -> None:
        """Give the runs that may not start any more, as the first ones failed alike, their rows."""
        self._taken.clear()
        for run_id in self._queue.list_runs() - self._unfit:
            self._look_at(run_id, machine)

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self._is_to_stop():
            time.sleep(_TICK_S)

    def _is_to_stop(self) -> bool:
        """Whether there was a signal, or `sweeper stop`, which counts as one."""
        if self._signals.number is None and time.monotonic() - self._asked_at >= _LOOK_EVERY_S:
            self._asked_at = time.monotonic()
            if self._stops.stop_mark() not in (self._stop_mark, None):
                self._is_told_to_stop = True
                self._signals.record(signal.SIGTERM, None)
        return self._signals.number is not None

    def _pull(self, machine: Machine) -> Iterator[Task | None]:
        """The attempts to make, each determined when it is taken; None while others train."""
        is_left = True
        while is_left:
            is_left, of_others = False, 0
            for run_id in self._queue.walk():
                if run_id in self._unfit:
                    continue
                task = self._look_at(run_id, machine)
                is_left |= self._stays_for(run_id)
                if task:
                    yield task
                    continue
                of_others += 1
                if of_others % _AT_A_LOOK == 0:
                    yield None
            look_at = time.monotonic() + _LOOK_EVERY_S * is_left
            while time.monotonic() < look_at:
                yield None

    def _stays_for(self, run_id: str) -> bool:
        """Whether this worker stays while a run is queued, whoever trains it."""
        del run_id
        return True

    def _look_at(self, run_id: str, machine: Machine) -> Task | None:
        """The attempt to make of a queued run; None if others have it, or it is left to them."""
        self._waiting.discard(run_id)
        try:
            ticket = self._queue.find(run_id) if self._is_free(run_id) else None
            task = self._claim_task(ticket) if ticket else None
            if task:
                self._ranks.check(task.spec)
                check_ready([task.spec.config], machine)
        except ValueError as error:
            self._unfit.add(run_id)
            self._taken.pop(run_id, None)
            self._say(f"Left to other workers: run {run_id}. {error}")
            return None
        return task

    def _is_free(self, run_id: str) -> bool:
        """Whether no process trains a run, as far as can be told without reading its ticket."""
        if run_id in self._taken:
            return False
        last = self._ledger.last_attempt(run_id)
        return not last or self._state(run_id, last) is not Open.HELD

    def _train(self, tasks: Tasks, machine: Machine) -> None:
        events = run_here(
            tasks,
            self._ledger,
            machine,
            why_stopped=self._why_stopped,
            may_start=lambda: self._signals.number is None,
            ranks=self._ranks,
            leave=self._leave,
        )
        with closing(events):
            for event in events:
                self._handle(event)
                if self._must_stop():
                    return

    def _leave(self, run_id: str) -> None:
        """Leave a run to another process that was faster, or has taken it over."""
        self._num_left += 1
        self._taken.pop(run_id, None)
        self._running.pop(run_id, None)

    def _claim_task(self, ticket: Ticket) -> Task | None:
        """The attempt to make now; None if the run has ended or another process is training it.

        If the first runs of its command failed alike, or it was killed too often, a row says that
        it is not started.
        """
        run_id, number = ticket.run_id, self._next_attempt(ticket)
        if number is None:
            return None
        spec = run_spec(ticket.spec.config)  # the same run: reading the ticket's spec checks its id
        first_ends = FirstEnds(self._queue.folder / ticket.submission / "first_ends")
        why = first_ends.why_stop
        self._has_refused |= why is not None
        end = End(outcome=Outcome.PREEMPTED, reason=why) if why else self._give_up(ticket, number)
        if end:
            if attempt := Attempt.begin(spec, self._ledger, number):
                before = attempt.folder.with_name(f"{number - 1:03d}") / PROGRESS
                if before.exists():  # its row keeps the curve so far
                    shutil.copy(before, attempt.folder)
                attempt.end(end, self._ledger)
            self._queue.remove(run_id)  # repeating the command queues it again
            return None
        results, unfit = self._ledger.results, self._unfit
        if waits_for_start(spec, results, lambda i: i not in unfit and self._queue.has(i)):
            self._waiting.add(run_id)
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
        state = self._state(run_id, number)
        if state is Open.ABANDONED:
            is_dead = self._held_before(folder)
            state = recover_attempt(self._ledger, run_id, number, is_dead=is_dead) or Open.HELD
        if state is Open.HELD:
            return None
        if state.outcome not in MAY_GO_ON or is_cancelled(folder):
            self._queue.remove(run_id)
            return None
        return number + 1

    def _state(self, run_id: str, number: int) -> End | Open:
        """The state of an attempt; abandoned if this worker has lost it."""
        state = attempt_state(self._ledger, run_id, number)
        folder = self._ledger.attempt_folder(run_id, number)
        return Open.ABANDONED if state is Open.HELD and self._held_before(folder) else state

    def _held_before(self, folder: Path) -> bool:
        """Whether this worker has an attempt that it does not train: the folder was away."""
        return holds(folder) and folder.parent.name not in self._running

    def _give_up(self, ticket: Ticket, number: int) -> End | None:
        """The end of a run that was killed too often without another step; None if it may go on."""
        killed = self._count_stalled(ticket, number, lambda attempt: not attempt.was_stopped)
        if killed < _MOST_KILLED:
            return None
        last = attempt_state(self._ledger, ticket.run_id, number - 1)
        reason = (
            f"not tried again, as {killed} attempts in a row ended before they saved a step. The "
            f"last: {last.reason if isinstance(last, End) else last}. Repeat the command to try "
            "again"
        )
        return End(outcome=Outcome.PREEMPTED, reason=reason)

    def _count_stalled(self, ticket: Ticket, number: int, counts: Callable[[Attempt], bool]) -> int:
        """How many of a run's last attempts saved no step, of those that count [count]."""
        stalled = furthest = 0
        for earlier in range(ticket.number, number):
            if attempt := Attempt.load(self._ledger, ticket.run_id, earlier):
                steps = attempt.steps()
                stalled = 0 if steps > furthest else stalled + counts(attempt)
                furthest = max(furthest, steps)
        return stalled

    def _handle(self, event: Event) -> None:
        for text in event.said:
            self._say(text)
        for attempt in event.began:
            self._say(f"start    {attempt.spec.point}  {attempt.resumes}".rstrip())
            self._running[attempt.spec.run_id] = attempt
            self._started.add(attempt.spec.run_id)
        for run_id, end in event.ended.items():
            first_ends = self._taken.pop(run_id)
            if attempt := self._running.pop(run_id, None):
                name = (config := attempt.spec.config).metric
                metric = metric_text(name, metric_columns(attempt.curve(), config)["metric"])
                line = f"{end.outcome:<8} {attempt.spec.point}", metric and f"{name}={metric}"
                self._say("  ".join(filter(None, (*line, end.reason))))
                is_early = attempt.is_early_failure(end) and not attempt.spec.config.keep_going
                first_ends.add(run_id, end.reason, is_early=is_early)
            if self._is_final(end, attempt):
                self._queue.remove(run_id)
            if attempt and end.outcome.is_result and int(run_id, 16) % MERGE_EVERY == 0:
                from sweeper.store.compaction import compact  # pyarrow: 0.2 s

                compact(self._ledger.results)

    def _is_final(self, end: End, ours: Attempt | None) -> bool:
        """Whether a run is not queued any more: a killed one is, until it was killed too often."""
        is_over = ours and (end.outcome != Outcome.PREEMPTED or is_cancelled(ours.folder))
        return end.outcome not in MAY_GO_ON or bool(is_over)

    @property
    def _grace_s(self) -> float:
        return math.inf  # SLURM's jobs, which override it, are killed at their limit

    def _must_stop(self) -> bool:
        """After a signal, stop runs gracefully; True once all ended or the grace time is over."""
        if not self._is_to_stop():
            return False
        for attempt in self._running.values():
            if not attempt.has_graceful_stop:
                attempt.request_graceful_stop()
        return not self._running or time.monotonic() - self._signals.at > self._grace_s

    def _why_stopped(self) -> str:
        if self._is_told_to_stop or self._signals.number is None:
            return "`sweeper stop` was called: stopped"
        is_over = self._signals.number == signal.SIGALRM
        return f"its worker {'had worked for its time' if is_over else 'was ended'}: stopped"
