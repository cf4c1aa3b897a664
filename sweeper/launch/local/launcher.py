"""This machine: each run in fresh processes from a warm fork server, as many as it carries."""

import multiprocessing
import signal
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.context import ForkServerContext
from pathlib import Path

from sweeper.launch.local.memory_probe import Fitting
from sweeper.launch.local.oom_retry import Halving
from sweeper.launch.local.slots import Machine, Slots
from sweeper.launch.shared import shared_folder
from sweeper.launch.workers import Ranks, RanksHere, Running, end_of, leave, stop
from sweeper.planning.tasks import End, Event, Task, Tasks
from sweeper.spec.outcomes import Outcome
from sweeper.store.attempt import Attempt, recover, standing
from sweeper.store.lease import HEARTBEAT_S
from sweeper.store.ledger import Ledger
from sweeper.store.memory_cache import Fit, Probes

_TICK_S = 0.02
_POLL_ELSEWHERE_S = 0.5


def run_here(
    tasks: Tasks,
    ledger: Ledger,
    machine: Machine,
    *,
    why_stopped: Callable[[], str] = lambda: "stopped",
    may_start: Callable[[], bool] = lambda: True,
    ranks: Ranks | None = None,
) -> Generator[Event]:
    """Make all runs, publishing each attempt's row as it ends.

    A run that another process is making is waited for, and taken over if that process dies.

    Args:
        tasks: what to run, in this order; taken as room appears.
        ledger: where the rows go.
        machine: what the runs may use.
        why_stopped: the reason of runs that are stopped, or asked to leave, before their end.
        may_start: whether runs that wait may begin.
        ranks: where the ranks of runs are; None for this machine.

    Yields:
        An event per tick, empty when nothing happened, so that a caller can draw.

    Raises:
        ValueError: if a run's layout is not to be had.
    """
    ranks = ranks or RanksHere()
    known = [task for task in tasks if task] if isinstance(tasks, list | tuple) else []
    for task in known:
        ranks.check(task.spec)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["lightning_modules.worker", *_modules_of(known[:1])])
    with shared_folder() as shared, _terminable():
        places = _Places(Slots(machine), ranks, context, shared)
        runs = _Runs(tasks, ledger, places, why_stopped=why_stopped, may_start=may_start)
        try:
            while runs.are_left:
                yield runs.started()
                time.sleep(_TICK_S)
                yield runs.ended()
        finally:
            runs.stop()


def _modules_of(tasks: Sequence[Task]) -> list[str]:
    """Where the data and the model of these runs are defined: imported once, not by each run."""
    groups = [task.spec.config[name] for task in tasks for name in ("data", "model")]
    return [group["_target_"].rpartition(".")[0] for group in groups]


@dataclass(frozen=True, slots=True)
class _Places:
    slots: Slots
    ranks: Ranks
    context: ForkServerContext
    shared: Path


class _Runs:
    """The runs of one call: waiting, running here, or under way in another process."""

    def __init__(
        self,
        tasks: Tasks,
        ledger: Ledger,
        places: _Places,
        *,
        why_stopped: Callable[[], str],
        may_start: Callable[[], bool],
    ) -> None:
        self._source = iter(tasks)
        self._source_is_empty = False
        self._waiting: deque[Task] = deque()
        self._running: list[Running] = []
        self._elsewhere: list[Task] = []
        self._halving = Halving()
        self._refused: list[tuple[Attempt, str]] = []
        self._ledger, self._slots = ledger, places.slots
        self._ranks, self._context = places.ranks, places.context
        self._why_stopped, self._may_start = why_stopped, may_start
        self._environment = {"SWEEPER_SHARED": str(places.shared)}
        self._fitting = Fitting(Probes(ledger.results, self._slots.machine.device), self._context)
        self._looked_at = self._polled_at = time.monotonic()

    @property
    def are_left(self) -> bool:
        """Whether any run has not ended."""
        under_way = self._waiting or self._running or self._elsewhere or self._fitting.holds_runs
        return bool(under_way or not self._source_is_empty)

    def _refill(self) -> None:
        """Take the next task of the source, if there is one and room for it."""
        if self._waiting or self._source_is_empty or not self._slots.has_room:
            return
        try:
            task = next(self._source)
        except StopIteration:
            self._source_is_empty = True
            return
        if task:
            self._ranks.check(task.spec)
            self._waiting.append(task)

    def started(self) -> Event:
        """Start what there is room for."""
        began: list[Attempt] = []
        elsewhere: list[Attempt] = []
        self._refill()
        while (
            self._waiting
            and self._may_start()
            and (place := self._slots.take(self._waiting[0].spec)) is not None
        ):
            task = self._waiting.popleft()
            fit = self._fitting.fit(task.spec)
            if fit.to_try is not None:
                if not self._fitting.begin(task, fit.to_try, place):
                    self._slots.give_back(task.spec.run_id)
            elif attempt := self._start(task, fit, place):
                began.append(attempt)
            else:
                self._slots.give_back(task.spec.run_id)
                self._elsewhere.append(task)
                if other := Attempt.found(self._ledger, task.spec.run_id, task.number):
                    elsewhere.append(other)
            self._refill()
        return Event(began=began, elsewhere=elsewhere)

    def _start(self, task: Task, fit: Fit, place: Mapping[str, str]) -> Attempt | None:
        attempt = Attempt.begin(fit.spec, self._ledger, task.number, from_scratch=task.from_scratch)
        if attempt and fit.refusal:
            self._refused.append((attempt, fit.refusal))
        elif attempt:
            environment = {**self._environment, **place}
            self._running.append(self._ranks.start(attempt, self._context, environment))
        return attempt

    def ended(self) -> Event:
        """Publish what has ended here, and look what has ended elsewhere."""
        self._let_go_of_the_lost()
        ends = self._refusals()
        for run in list(self._running):
            if end := end_of(run, self._why_stopped) or self._stopped_on_request(run):
                self._drop(run)
                outcome, reason = end[0], end[1] + self._halving.note(run.attempt.spec.run_id)
                ends.append(_publish(run.attempt, outcome, reason, self._ledger))
                self._fitting.learn(run.attempt, outcome)
                if outcome == Outcome.OUT_OF_MEMORY and (
                    smaller := self._halving.again(run.attempt)
                ):
                    ends.pop()
                    self._waiting.appendleft(smaller)
        return Event(ended=[*ends, *self._ended_elsewhere()], said=self._tried())

    def _refusals(self) -> list[End]:
        """Publish the runs of which not even the smallest micro-batch fits."""
        refused, self._refused = self._refused, []
        for attempt, _ in refused:
            self._slots.give_back(attempt.spec.run_id)
        return [
            _publish(attempt, Outcome.OUT_OF_MEMORY, why, self._ledger) for attempt, why in refused
        ]

    def _tried(self) -> Sequence[str]:
        """Take back the runs whose micro-batch has been tried; what to say of it."""
        looked = self._fitting.look()
        for task in looked.free:
            self._slots.give_back(task.spec.run_id)
        self._waiting.extendleft(reversed(looked.ready))
        return looked.said

    def _stopped_on_request(self, run: Running) -> tuple[Outcome, str] | None:
        reason = run.attempt.stop_reason()
        if reason is None:
            return None
        stop([run])
        return Outcome.PREEMPTED, reason

    def _drop(self, run: Running) -> None:
        self._running.remove(run)
        self._slots.give_back(run.attempt.spec.run_id)

    def _let_go_of_the_lost(self) -> None:
        """Stop runs that were taken over while this process could not show that it lives."""
        if time.monotonic() - self._looked_at < HEARTBEAT_S:
            return
        self._looked_at = time.monotonic()
        for run in list(self._running):
            if run.attempt.is_taken_over:
                stop([run])
                self._drop(run)
                spec, number = run.attempt.spec, run.attempt.number + 1
                self._elsewhere.append(Task(spec=spec, number=number))

    def _ended_elsewhere(self) -> list[End]:
        if time.monotonic() - self._polled_at < _POLL_ELSEWHERE_S:
            return []
        self._polled_at = time.monotonic()
        ends: list[End] = []
        for task in list(self._elsewhere):
            stands = standing(self._ledger, task.spec.run_id, task.number)
            if stands is True:
                continue
            self._elsewhere.remove(task)
            if stands:
                outcome, reason = stands
                ends.append(End(run_id=task.spec.run_id, outcome=outcome, reason=reason))
            else:
                recover(self._ledger, task.spec.run_id, task.number)
                self._waiting.append(Task(spec=task.spec, number=task.number + 1))
        return ends

    def stop(self) -> None:
        """End what is running; it goes on from where it was saved when the command is repeated."""
        self._fitting.stop()
        leave(self._running)
        for run in self._running:
            has_ended = any(rank.exitcode is not None for rank in run.ranks)
            end = end_of(run, self._why_stopped) if has_ended else None
            stop([run])
            outcome, reason = end or run.attempt.end_when_stopped(self._why_stopped)
            reason += self._halving.note(run.attempt.spec.run_id)
            _publish(run.attempt, outcome, reason, self._ledger)


def _publish(attempt: Attempt, outcome: Outcome, reason: str, ledger: Ledger) -> End:
    attempt.end(outcome, reason, ledger)
    return End(run_id=attempt.spec.run_id, outcome=outcome, reason=reason)


@contextmanager
def _terminable() -> Generator[None]:
    """SIGTERM ends a sweep as Ctrl-C does, unless the caller heeds it in its own way."""
    before = signal.getsignal(signal.SIGTERM)
    if before != signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
