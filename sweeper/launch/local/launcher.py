"""The local launcher: each run in fresh processes from a warm fork server, as many as fit."""

import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing.context import ForkServerContext
from pathlib import Path

from sweeper.launch.first_ends import FirstEnds
from sweeper.launch.fork_server import ForkServerDied, open_fork_server
from sweeper.launch.local.elsewhere import Elsewhere
from sweeper.launch.local.interrupts import interruptible, undivided
from sweeper.launch.local.oom_retry import OomRetry
from sweeper.launch.local.readiness import check_ready
from sweeper.launch.local.slots import Machine, Slots, open_slots
from sweeper.launch.memory_trace import trace_memory
from sweeper.launch.ranks import (
    GracefulStop,
    LocalRanks,
    Ranks,
    Running,
    WhyStopped,
    end_of,
    stop,
    wait_for_exit,
)
from sweeper.launch.shared_memory import shared_folder
from sweeper.planning.event import Event
from sweeper.planning.plan import Task, Tasks, known_tasks
from sweeper.spec.outcomes import Outcome
from sweeper.spec.run_spec import RunSpec
from sweeper.spec.warnings import slow_split
from sweeper.store.attempt import Attempt, End
from sweeper.store.ledger import Ledger
from sweeper.store.memory_cache import Fit, MemoryCache

#: How often to check for files written by other processes, rather than at every event.
_LOOK_S = 1.0


def run_here(
    tasks: Tasks,
    ledger: Ledger,
    machine: Machine,
    *,
    why_stopped: WhyStopped = lambda: "stopped",
    may_start: Callable[[], bool] = lambda: True,
    ranks: Ranks | None = None,
    look_first: bool = True,
) -> Generator[Event]:
    """Execute all runs, publishing each attempt's row as it ends.

    A run that another process trains is waited for, and taken over if that process dies. Events
    come several times a second, so that a caller can draw. After Ctrl-C they continue until the
    runs are saved or it is pressed again; then KeyboardInterrupt is raised. `may_start` says
    whether waiting runs may start, `why_stopped` gives the reason for runs that are stopped early;
    without `ranks` all ranks are on this machine. ValueError if a layout is not available or this
    machine lacks something: with `look_first` before any run starts, else such runs end as failed.
    """
    ranks = ranks or LocalRanks()
    known = known_tasks(tasks)
    for task in known:
        ranks.check(task.spec)
    if look_first:
        check_ready((task.spec.config for task in known), machine)
    configs = [task.spec.config for task in known[:1]]
    groups = [group for one in configs for group in (one.module, one.data, one.model) if group]
    context = open_fork_server([group.target for group in groups])
    with shared_folder() as shared, open_slots(machine, ledger, shared) as slots, interruptible():
        runs = _Runs(
            source=iter(tasks),
            ledger=ledger,
            elsewhere=Elsewhere(ledger),
            slots=slots,
            ranks=ranks,
            context=context,
            shared=shared,
            memory=MemoryCache(ledger.results, machine.device),
            why_stopped=why_stopped,
            may_start=may_start,
        )
        event = Event(said=["Loading torch ..."])  # the fork server responds only after that
        try:
            yield event
            while runs.are_left:
                yield runs.start()
                if not event.ended:  # otherwise nothing may be left to wait for
                    runs.wait()
                event = runs.end()
                yield event
        except KeyboardInterrupt:
            yield from runs.save_and_stop()
            raise
        finally:
            runs.stop()


@dataclass(slots=True, kw_only=True)
class _Runs:
    """The runs of one call: waiting, running here, or running in another process."""

    source: Iterator[Task | None]
    ledger: Ledger
    elsewhere: Elsewhere
    slots: Slots
    ranks: Ranks
    context: ForkServerContext
    shared: Path
    memory: MemoryCache
    why_stopped: WhyStopped
    may_start: Callable[[], bool]
    _source_is_empty: bool = False
    _waiting: deque[Task] = field(default_factory=deque[Task])
    _running: list[Running] = field(default_factory=list[Running])
    _ended: dict[str, End] = field(default_factory=dict[str, End])  # not reported yet
    _first_ends: FirstEnds = field(default_factory=FirstEnds)
    _is_stopped: bool = False
    _begun: Attempt | None = None  # the latest one
    _oom_retry: OomRetry = field(default_factory=OomRetry)
    _looked_at: float = field(default_factory=time.monotonic)

    @property
    def are_left(self) -> bool:
        """Whether any run has not ended."""
        is_busy = self._waiting or self._running
        return bool(is_busy or self.elsewhere.has_runs or not self._source_is_empty)

    def start(self) -> Event:
        """Start as many runs as there is room for."""
        began: list[Attempt] = []
        elsewhere: list[Attempt] = []
        self._refill()
        said = self._drop_waiting()
        while (
            self._waiting
            and self.may_start()
            and (slot := self.slots.take(self._waiting[0].spec)) is not None
        ):
            task = self._waiting.popleft()
            said += self._trace(task.spec)
            fit = self.memory.fit(task.spec)
            if attempt := self._begin(task, fit):
                began.append(attempt)
                self._start_ranks(attempt, fit, slot)
            else:
                self.slots.give_back(task.spec.run_id)
                elsewhere += self.elsewhere.add(task)
            self._refill()
        said += [*self.slots.take_notes(), *(note for attempt in began for note in attempt.notes)]
        return Event(began=began, elsewhere=elsewhere, ended=self._take_ended(), said=said)

    def _trace(self, spec: RunSpec) -> list[str]:
        """Trace the memory on which the micro-batch depends, if not known; remarks for the user."""
        if not self.memory.is_chosen(spec) or self.memory.is_traced(spec):
            return []
        why_not = trace_memory(spec, self.memory, self.context)
        fit = self.memory.fit(spec)
        return [text for text in (why_not, slow_split(fit.spec, fit.fails)) if text]

    def _drop_waiting(self) -> list[str]:
        """Drop all waiting runs if the first failed alike, before their first step; return why."""
        why = self._first_ends.why_stop
        if why is None or not self._waiting:
            return []
        self._waiting.clear()
        said = [] if self._is_stopped else [why]
        self._is_stopped = self._source_is_empty = True
        return said

    def _begin(self, task: Task, fit: Fit) -> Attempt | None:
        spec, scratch = fit.spec, task.from_scratch
        with undivided():
            begun = Attempt.begin(spec, self.ledger, task.number, from_scratch=scratch)
            self._begun = begun or self._begun
        return begun

    def _refill(self) -> None:
        """Take the next task from the source, if there is one and there is room for it."""
        if self._waiting or self._source_is_empty or not self.slots.has_room:
            return
        try:
            task = next(self.source)
        except StopIteration:
            self._source_is_empty = True
            return
        if task:
            self.ranks.check(task.spec)
            self._waiting.append(task)

    def _start_ranks(self, attempt: Attempt, fit: Fit, slot: Mapping[str, str]) -> None:
        """Start the ranks of an attempt, or publish why they cannot be started."""
        outcome, reason = Outcome.OUT_OF_MEMORY, fit.refusal
        if not reason:
            environment = {"SWEEPER_SHARED": str(self.shared), **slot}
            try:
                run = self.ranks.start(attempt, self.context, environment)
            except ValueError as error:
                outcome, reason = Outcome.FAILED, str(error)
            except ForkServerDied as error:
                outcome, reason = Outcome.PREEMPTED, str(error)
            else:
                self._running.append(run)
                return
        self._publish(attempt, End(outcome=outcome, reason=reason))

    def wait(self) -> None:
        """Wait until a process ends, but not for long."""
        wait_for_exit([process for run in self._running for process in run.processes])

    def end(self) -> Event:
        """Publish the runs that have ended here, and read those that ended elsewhere."""
        if time.monotonic() - self._looked_at >= _LOOK_S:
            self._looked_at = time.monotonic()
            self._drop_taken_over()
            self._end_cancelled()
            ended, abandoned = self.elsewhere.look()
            self._ended |= ended
            self._waiting.extend(abandoned)
        for run in list(self._running):
            if end := end_of(run, self.why_stopped):
                is_over = end.outcome == Outcome.OUT_OF_MEMORY
                is_crowded = is_over and self.slots.is_shared(run.attempt.spec)
                self._publish(run.attempt, end)
                self.slots.learn(run.attempt, end.outcome, is_crowded=is_crowded)
                if not is_crowded:
                    self.memory.learn(run.attempt, end.outcome)
                retry = self._oom_retry.retry_alone if is_crowded else self._oom_retry.retry
                if is_over and (again := retry(run.attempt)):
                    del self._ended[again.spec.run_id]
                    self._waiting.appendleft(again)
        return Event(ended=self._take_ended())

    def _take_ended(self) -> Mapping[str, End]:
        """The runs that have ended since the previous call."""
        ended, self._ended = self._ended, {}
        return ended

    def _publish(self, attempt: Attempt, end: End) -> None:
        """Publish the end of an attempt whose processes are gone; Ctrl-C waits until it is done."""
        run_id = attempt.spec.run_id
        end = replace(end, reason=end.reason + self._oom_retry.note(run_id))
        with undivided():
            attempt.end(end, self.ledger)
            self._drop(attempt)
            self._ended[run_id] = end
        is_early = attempt.failed_early(end) and not attempt.spec.config.keep_going
        self._first_ends.add(run_id, end.reason, is_early=is_early)

    def _end_cancelled(self) -> None:
        """End cancelled runs, such as those of trials that a tuner has pruned."""
        for run in list(self._running):
            if (reason := run.attempt.cancel_reason()) is not None:
                stop([run])
                self._publish(run.attempt, End(outcome=Outcome.PREEMPTED, reason=reason))

    def _drop_taken_over(self) -> None:
        """Stop runs that others took over because this process's heartbeat had stopped."""
        for run in list(self._running):
            if run.attempt.is_taken_over:
                stop([run])
                self._drop(run.attempt)
                spec, number = run.attempt.spec, run.attempt.number + 1
                self.elsewhere.add(Task(spec=spec, number=number))

    def _drop(self, attempt: Attempt) -> None:
        self._running = [run for run in self._running if run.attempt is not attempt]
        self.slots.give_back(attempt.spec.run_id)

    def save_and_stop(self) -> Generator[Event]:
        """Stop gracefully after Ctrl-C, telling the user at once; a second one ends the waiting."""
        saving = GracefulStop(self._running)
        with suppress(KeyboardInterrupt):
            yield Event(said=saving.announcement, ended=self._take_ended(), is_stopping=True)
            while saving.is_waited_for:
                self.wait()
                yield replace(self.end(), is_stopping=True)
        yield Event(said=saving.unsaved, is_stopping=True)
        self.stop()
        yield Event(ended=self._take_ended(), is_stopping=True)

    def stop(self) -> None:
        """Stop all running runs; they resume from their checkpoints if the command is repeated."""
        self._end_unstarted()
        GracefulStop(self._running).wait()
        for run in list(self._running):
            has_ended = any(code is not None for code in run.codes)
            end = end_of(run, self.why_stopped) if has_ended else None
            stop([run])
            self._publish(run.attempt, end or run.attempt.end_of_stopped(self.why_stopped))

    def _end_unstarted(self) -> None:
        """Publish an attempt that had been claimed, but not started, when a signal arrived."""
        attempt = self._begun
        running = [run.attempt for run in self._running]
        if attempt and attempt not in running and not attempt.is_released:
            self._publish(attempt, attempt.end_of_stopped(self.why_stopped))
