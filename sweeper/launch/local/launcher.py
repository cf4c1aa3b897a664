"""The local launcher: each run in fresh processes from a warm fork server, as many as fit."""

import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from sweeper.launch.early_failures import FirstEnds
from sweeper.launch.fork_server import ForkServerDied, open_fork_server
from sweeper.launch.local.free_gpus import find_free_gpus
from sweeper.launch.local.interrupts import catch_signals, defer_signals
from sweeper.launch.local.preflight import check_ready
from sweeper.launch.local.slots import Machine, Slots
from sweeper.launch.memory_trace import trace_memory
from sweeper.launch.ranks import (
    GracefulStop,
    LocalRanks,
    Ranks,
    Running,
    WhyStopped,
    collect_end,
    kill_processes,
    wait_for_exit,
)
from sweeper.launch.shared_memory import shared_folder
from sweeper.planning.plan import Event, Task, Tasks, known_tasks, wait_for_starts
from sweeper.spec.batch import smaller_micro_batch
from sweeper.spec.outcomes import MAY_GO_ON, Outcome
from sweeper.spec.run_spec import run_spec
from sweeper.spec.spans import takes_micro_batches_whole
from sweeper.spec.warnings import slow_split
from sweeper.store.attempt import Attempt, End, Open, attempt_state
from sweeper.store.lease import was_taken_over
from sweeper.store.ledger import Ledger
from sweeper.store.memory_cache import Fit, MemoryCache
from sweeper.store.recovery import recover_attempt

#: How often to check for files written by other processes, rather than at every event.
_CHECK_FILES_S = 1.0


def run_here(
    tasks: Tasks,
    ledger: Ledger,
    machine: Machine,
    *,
    why_stopped: WhyStopped = lambda: "stopped",
    may_start: Callable[[], bool] = lambda: True,
    ranks: Ranks | None = None,
    leave_occupied: bool = False,
    leave: Callable[[str], None] | None = None,
) -> Generator[Event]:
    """Execute all runs, publishing each attempt's row as it ends.

    A run that another process trains is waited for, and taken over if that process dies. Events
    come several times a second, so that a caller can draw. After Ctrl-C they continue until the
    runs are saved or it is pressed again; then KeyboardInterrupt is raised.

    Args:
        tasks: the attempts to make.
        ledger: where rows are published.
        machine: whose resources the runs share.
        why_stopped: gives the reason for runs that are stopped early.
        may_start: whether waiting runs may start.
        ranks: where ranks are started; None for this machine.
        leave_occupied: whether GPUs that other processes use are left to them.
        leave: called with a run that another process trains, which is then not waited for; and
            what this machine cannot start then ends as failed, rather than that all are refused.

    Raises:
        ValueError: if a layout is not available or this machine lacks something.
    """
    ranks = ranks or LocalRanks()
    known = known_tasks(tasks)
    for task in known:
        ranks.check(task.spec)
    if leave is None:
        check_ready((task.spec.config for task in known), machine)
    if leave_occupied:
        needs = [t.spec.config.devices for t in known if t.spec.config.accelerator != "cpu"]
        wait = any(task.spec.config.wait_for_gpu for task in known)
        machine = yield from find_free_gpus(machine, max(needs, default=0), wait=wait)
    configs = [task.spec.config for task in known[:1]]
    groups = [group for c in configs for group in (c.module, c.data, c.model) if group]
    open_fork_server([group.target for group in groups])
    with shared_folder() as shared, catch_signals():
        runs = _Runs(
            source=iter(tasks if leave else wait_for_starts(tasks, ledger)),
            ledger=ledger,
            slots=Slots(machine),
            ranks=ranks,
            shared=shared,
            memory=MemoryCache(ledger.results, machine.device),
            why_stopped=why_stopped,
            may_start=may_start,
            leave=leave,
        )
        event = Event(said=["Loading torch ..."])  # the fork server responds only after that
        try:
            yield event
            while runs.are_left:
                yield runs.start_waiting()
                if not event.ended:  # otherwise nothing may be left to wait for
                    runs.wait_briefly()
                event = runs.collect_ends()
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
    slots: Slots
    ranks: Ranks
    shared: Path
    memory: MemoryCache
    why_stopped: WhyStopped
    may_start: Callable[[], bool]
    leave: Callable[[str], None] | None = None
    _source_is_empty: bool = False
    _waiting: deque[Task] = field(default_factory=deque[Task])
    _running: list[Running] = field(default_factory=list[Running])
    _remote_runs: list[Task] = field(default_factory=list[Task])  # claimed by other processes
    _ended: dict[str, End] = field(default_factory=dict[str, End])  # not reported yet
    _first_ends: FirstEnds = field(default_factory=FirstEnds)
    _is_stopped: bool = False
    _latest: Attempt | None = None  # claimed here
    _retried: dict[str, str] = field(default_factory=dict[str, str])  # why, by run id
    _checked_at: float = field(default_factory=time.monotonic)

    @property
    def are_left(self) -> bool:
        """Whether any run has not ended."""
        is_busy = self._waiting or self._running or self._remote_runs
        return bool(is_busy or not self._source_is_empty)

    def start_waiting(self) -> Event:
        """Start the waiting runs that there is room for, or none if the first runs failed alike."""
        began: list[Attempt] = []
        elsewhere: list[Attempt] = []
        self._refill()
        said: list[str] = []
        if self._waiting and (why := self._first_ends.why_stop):
            self._waiting.clear()
            said += [] if self._is_stopped else [why]
            self._is_stopped = self._source_is_empty = True
        while (
            self._waiting
            and self.may_start()
            and (slot := self.slots.take(self._waiting[0].spec)) is not None
        ):
            task = self._waiting.popleft()
            fit = self.memory.fit(task.spec)
            if fit.source == "to be traced":
                why_not = trace_memory(task.spec, self.memory)
                fit = self.memory.fit(task.spec)
                said += [text for text in (why_not, slow_split(fit.spec, fit.fails)) if text]
            with defer_signals():  # else it could be claimed, and `stop` not know of it
                attempt = Attempt.begin(
                    fit.spec, self.ledger, task.number, from_scratch=task.from_scratch
                )
                self._latest = attempt or self._latest
            if attempt:
                began.append(attempt)
                self._start_ranks(attempt, fit, slot)
                said += attempt.notes
            else:
                self.slots.give_back(task.spec.run_id)
                self._leave_to_others(task)
                remote = Attempt.load(self.ledger, task.spec.run_id, task.number)
                elsewhere += [remote] if remote else []
            self._refill()
        return Event(began=began, elsewhere=elsewhere, ended=self._take_ended(), said=said)

    def _refill(self) -> None:
        """Take the next task from the source, if it has a task and there is room for it."""
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
                run = self.ranks.start(attempt, environment)
            except ValueError as error:
                outcome, reason = Outcome.FAILED, str(error)
            except ForkServerDied as error:
                outcome, reason = Outcome.PREEMPTED, str(error)
            else:
                self._running.append(run)
                return
        self._publish(attempt, End(outcome=outcome, reason=reason))

    def wait_briefly(self) -> None:
        """Wait until a process ends, but not for long."""
        wait_for_exit([process for run in self._running for process in run.processes])

    def collect_ends(self) -> Event:
        """Publish the runs that have ended here, and read those that ended in other processes."""
        if time.monotonic() - self._checked_at >= _CHECK_FILES_S:
            self._checked_at = time.monotonic()
            for run in list(self._running):
                attempt = run.attempt
                if attempt.is_taken_over:  # because this process's heartbeat had stopped
                    kill_processes(run.processes)
                    self._forget_running(attempt)
                    self._leave_to_others(Task(spec=attempt.spec, number=attempt.number))
                elif (reason := attempt.cancel_reason()) is not None:  # as of a pruned trial
                    kill_processes(run.processes)
                    self._publish(attempt, End(outcome=Outcome.PREEMPTED, reason=reason))
            self._follow_remote_runs()
        for run in list(self._running):
            if end := collect_end(run, self.why_stopped):
                self._publish(run.attempt, end)
                self.memory.record_end(run.attempt, end.outcome)
                if end.outcome == Outcome.OUT_OF_MEMORY and run.attempt.spec.run_id in self._ended:
                    self._retry_with_less_memory(run.attempt)
        return Event(ended=self._take_ended())

    def _leave_to_others(self, task: Task) -> None:
        """Follow a run that another process has, or leave it."""
        if self.leave:
            self.leave(task.spec.run_id)
        else:
            self._remote_runs.append(task)

    def _follow_remote_runs(self) -> None:
        """Read the ends of other processes' runs, and recover those that they abandoned."""
        for task in list(self._remote_runs):
            run_id = task.spec.run_id
            state = attempt_state(self.ledger, run_id, task.number)
            if state is Open.ABANDONED:
                state = recover_attempt(self.ledger, run_id, task.number)
            if not isinstance(state, End):
                continue
            self._remote_runs.remove(task)
            was_abandoned = was_taken_over(self.ledger.attempt_folder(run_id, task.number))
            if was_abandoned and state.outcome in MAY_GO_ON:
                self._waiting.append(Task(spec=task.spec, number=task.number + 1))
            else:
                self._ended[run_id] = state

    def _retry_with_less_memory(self, attempt: Attempt) -> None:
        """Resume a run that ran out of memory with half its micro-batch, unless that is fixed."""
        spec = attempt.spec
        size = spec.split.micro_batch
        smaller = smaller_micro_batch(size, divided=spec.divided, bn_span=spec.bn_span)
        is_fixed = spec.config.reproducible or takes_micro_batches_whole(spec.config)
        if smaller is None or is_fixed:
            return
        try:
            again = run_spec(spec.config.with_changes(micro_batch=smaller), spec.facts)
        except ValueError:  # of a batch in tokens, whose parts must hold the longest example
            return
        self._retried[spec.run_id] = (
            f"; micro_batch={smaller} since attempt {attempt.number} ran out of memory with "
            f"micro_batch={size}"
        )
        del self._ended[spec.run_id]
        self._waiting.appendleft(Task(spec=again, number=attempt.number + 1))

    def _take_ended(self) -> Mapping[str, End]:
        """The runs that have ended since the previous call."""
        ended, self._ended = self._ended, {}
        return ended

    def _publish(self, attempt: Attempt, end: End) -> None:
        """Publish the end of an attempt whose processes are gone; Ctrl-C waits until it is done.

        If another process has taken it over, the run is that process's.
        """
        run_id = attempt.spec.run_id
        end = replace(end, reason=end.reason + self._retried.get(run_id, ""))
        with defer_signals():
            is_published = attempt.end(end, self.ledger)
            self._forget_running(attempt)
            if not is_published:
                self._leave_to_others(Task(spec=attempt.spec, number=attempt.number))
                return
            self._ended[run_id] = end
        is_early = attempt.is_early_failure(end) and not attempt.spec.config.keep_going
        self._first_ends.add(run_id, end.reason, is_early=is_early)

    def _forget_running(self, attempt: Attempt) -> None:
        self._running = [run for run in self._running if run.attempt is not attempt]
        self.slots.give_back(attempt.spec.run_id)

    def save_and_stop(self) -> Generator[Event]:
        """Stop gracefully after Ctrl-C, telling the user at once; a second press ends the wait."""
        saving = GracefulStop(self._running)
        with suppress(KeyboardInterrupt):
            yield Event(said=saving.announcement, ended=self._take_ended(), is_stopping=True)
            while saving.is_waited_for:
                self.wait_briefly()
                yield replace(self.collect_ends(), is_stopping=True)
        yield Event(said=saving.unsaved, is_stopping=True)
        self.stop()
        yield Event(ended=self._take_ended(), is_stopping=True)

    def stop(self) -> None:
        """Stop all running runs; they resume from their checkpoints if the command is repeated."""
        latest, running = self._latest, [run.attempt for run in self._running]
        GracefulStop(self._running).wait()
        ends: list[tuple[Attempt, End | None]] = []
        for run in self._running:
            has_ended = any(code is not None for code in run.codes)
            ends.append((run.attempt, collect_end(run, self.why_stopped) if has_ended else None))
            kill_processes(run.processes)
        if latest and latest not in running and latest.is_ours:
            ends.append((latest, None))  # claimed, but not started, when a signal arrived
        for attempt, end in ends:  # all are killed by now, if the folder cannot be written
            self._publish(attempt, end or attempt.end_of_stopped(self.why_stopped))
