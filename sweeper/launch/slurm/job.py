"""A job on its node: executes its runs, handles SLURM's signals, exits with a meaningful code.

The job requeues itself: after a signal its runs checkpoint after the current step and exit, and
the job goes back into the queue. It never imports torch.
"""

import json
import os
import signal
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import chain, islice
from pathlib import Path
from types import FrameType

from sweeper.launch.first_ends import SharedFirstEnds
from sweeper.launch.local.launcher import run_here
from sweeper.launch.local.slots import Machine, this_machine
from sweeper.launch.slurm import commands
from sweeper.launch.slurm.nodes import SrunRanks
from sweeper.launch.slurm.tickets import MAY_GO_ON, Ticket, Tickets
from sweeper.planning.plan import Event, LazyTasks, Task
from sweeper.spec.outcomes import DONE, RUN_FAILED, Outcome
from sweeper.spec.run_spec import run_spec
from sweeper.spec.values import Count, NotNegative, Settings
from sweeper.store.attempt import Attempt, End, Open, attempt_state, recover_attempt
from sweeper.store.ledger import Ledger

#: Exit code of a job that a signal ended before its runs had results (EX_TEMPFAIL of sysexits.h).
CUT_SHORT_EXIT = 75


class JobPolicy(Settings):
    """What a job does when its time is running out, and how it shares its nodes.

    conf/hydra/launcher/slurm.yaml explains each key; those in `_s` are seconds.
    """

    warning_s: Count
    grace_s: NotNegative
    term_grace_s: NotNegative
    attempts_without_step: Count
    runs_at_a_time: Count
    runs_per_gpu: Count
    pulling_jobs: Count | None


def run_element(results: str, run_ids: Sequence[str], policy: JobPolicy) -> None:
    """Execute a job on its first node; called by submitit. SystemExit with the job's exit code."""
    raise SystemExit(_Job(Ledger(Path(results)), policy, _note_signals()).run(run_ids))


class _Signals:
    """The first signal from SLURM: SIGUSR1 before the time limit, SIGTERM if it ends the job."""

    def __init__(self) -> None:
        self.first: signal.Signals | None = None
        self.at = 0.0

    def note(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self.first is None:
            self.first, self.at = signal.Signals(number), time.monotonic()


def _note_signals() -> _Signals:
    """Record signals from now on; the ranks, which SLURM also signals, ignore SIGTERM."""
    noted = _Signals()
    for number in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(number, noted.note)
    return noted


class _Job:
    def __init__(self, ledger: Ledger, policy: JobPolicy, signals: _Signals) -> None:
        self._ledger, self._policy, self._signals = ledger, policy, signals
        self._tickets = Tickets(ledger)
        self._number = _job_number()
        self._running: dict[str, Attempt] = {}
        self._took: set[str] = set()
        self._stopping: set[str] = set()

    def run(self, run_ids: Sequence[str]) -> int:
        """Execute the runs that have not ended; return the exit code."""
        found = self._tasks(run_ids)
        try:
            known = list(islice(found, 1) if self._policy.pulling_jobs else found)
        except ValueError as error:
            print(error, flush=True)  # noqa: T201  into the job's log
            return RUN_FAILED
        if known:
            if why := self._first_ends.why_stop:
                return self._drop(known, why)
            self._rename(known)
            events = self._launch(LazyTasks(known, filter(self._fits, chain(known, found))))
            for event in events:
                self._take_in(event)
                if self._must_stop():
                    events.close()
                    break
        return self._exit_code(run_ids)

    def _tasks(self, run_ids: Sequence[str]) -> Iterator[Task]:
        """The attempts to make, each determined when it is taken; no more if the first runs failed.

        ValueError if a ticket was written by another version of this code.
        """
        numbers = self._tickets.latest()
        for run_id in run_ids:
            ticket = self._tickets.read(run_id, numbers[run_id]) if run_id in numbers else None
            if ticket and (task := self._task(ticket)):
                self._first_ends = SharedFirstEnds(self._tickets.first_ends_of(ticket))
                if self._took and self._first_ends.why_stop:
                    return
                yield task

    def _fits(self, task: Task) -> bool:
        """Whether the command's budget allows a task; if not, a row records that."""
        ticket = self._tickets.of(task.spec.run_id)
        account = self._tickets.account_of(ticket) if ticket else None
        if account is None or account.fits(task, self._ledger):
            return True
        self._drop([task], f"budget={task.spec.config.budget} would be exceeded: not started")
        return False

    def _drop(self, tasks: Sequence[Task], why: str) -> int:
        """Do not start these runs: their rows say why, and repeating the command resubmits them."""
        for task in tasks:
            if attempt := Attempt.begin(task.spec, self._ledger, task.number):
                attempt.end(End(outcome=Outcome.PREEMPTED, reason=why), self._ledger)
            self._tickets.remove(task.spec.run_id)
        return RUN_FAILED

    def _task(self, ticket: Ticket) -> Task | None:
        """The attempt to make; None if the run has ended or another process is training it."""
        number = max(ticket.number, self._ledger.last_attempt(ticket.run_id))
        if not self._ledger.attempt_folder(ticket.run_id, number).exists():
            return _task_of(ticket, number)
        state = attempt_state(self._ledger, ticket.run_id, number)
        if state is Open.HELD and not self._is_mine(ticket.run_id, number):
            return None
        end = None if isinstance(state, Open) else state
        if end is None:  # this job had it before SLURM requeued the job
            end = recover_attempt(self._ledger, ticket.run_id, number)
        if end is None or end.outcome in MAY_GO_ON:
            return _task_of(ticket, number + 1)
        self._tickets.remove(ticket.run_id)
        return None

    def _is_mine(self, run_id: str, number: int) -> bool:
        try:
            note = json.loads((self._ledger.attempt_folder(run_id, number) / _NOTE).read_text())
        except FileNotFoundError:
            return False
        return note["job"] == self._number

    def _rename(self, tasks: Sequence[Task]) -> None:
        name = tasks[0].spec.point.replace(" ", "_")
        is_alone = len(tasks) == 1 and not self._policy.pulling_jobs
        commands.rename(self._number, name if is_alone else f"{name}_and_more")

    def _launch(self, tasks: LazyTasks) -> Generator[Event]:
        policy = self._policy
        machine = this_machine(jobs=policy.runs_at_a_time, runs_per_gpu=policy.runs_per_gpu)
        ranks = None
        if tasks.known[0].spec.config.num_nodes > 1:  # one after the other, each on all nodes
            machine, ranks = Machine(cores=1, jobs=1, device=machine.device), SrunRanks()
        return run_here(
            tasks,
            self._ledger,
            machine,
            why_stopped=self._why_stopped,
            may_start=self._may_start,
            ranks=ranks,
            refuse_early=False,  # a run that cannot start gets a row
        )

    def _may_start(self) -> bool:
        return self._signals.first is None

    def _take_in(self, event: Event) -> None:
        for text in event.said:
            print(text, flush=True)  # noqa: T201  into the job's log
        for attempt in event.began:
            self._running[attempt.spec.run_id] = attempt
            self._took.add(attempt.spec.run_id)
            node = os.environ.get("SLURM_JOB_NODELIST", "")
            note = json.dumps({"job": self._number, "nodes": node})
            (attempt.folder / _NOTE).write_text(note)
        for run_id, end in event.ended.items():
            if attempt := self._running.pop(run_id, None):
                self._note_hours(attempt)
                is_early = attempt.failed_early(end) and not attempt.spec.config.keep_going
                self._first_ends.add(run_id, end.reason, is_early=is_early)
            if end.outcome != Outcome.PREEMPTED or self._signals.first is None:
                self._tickets.remove(run_id)

    def _note_hours(self, attempt: Attempt) -> None:
        """Record the device-hours of an ended attempt, if the command has a budget."""
        run_id, ranks = attempt.spec.run_id, attempt.spec.split.world_size
        ticket = self._tickets.of(run_id) if attempt.spec.config.budget else None
        if ticket and (account := self._tickets.account_of(ticket)):
            taken = datetime.now(UTC) - attempt.started_at
            account.note(run_id, attempt.number, taken.total_seconds() * ranks / 3600)

    def _must_stop(self) -> bool:
        """After a signal, stop runs gracefully; True once all ended or the grace time is over."""
        if self._signals.first is None:
            return False
        for run_id in self._running.keys() - self._stopping:
            self._running[run_id].request_graceful_stop()
            self._stopping.add(run_id)
        by_term = self._signals.first == signal.SIGTERM
        grace_s = self._policy.term_grace_s if by_term else self._policy.grace_s
        return not self._running or time.monotonic() - self._signals.at > grace_s

    def _why_stopped(self) -> str:
        if self._signals.first == signal.SIGUSR1:
            return f"its job's time limit was near{commands.no_requeue()}: stopped"
        if commands.was_cancelled(_own_log()):
            return "cancelled with scancel: stopped"
        return "SLURM took its nodes away: stopped"

    def _exit_code(self, run_ids: Sequence[str]) -> int:
        """The job's exit code; near the time limit it is first requeued if a run should resume."""
        ended = self._ledger.ended()
        ours = self._took if self._policy.pulling_jobs else run_ids
        outcomes = [ended[run_id].outcome for run_id in ours if run_id in ended]
        if len(outcomes) == len(ours) and all(outcome.is_result for outcome in outcomes):
            return DONE
        if self._signals.first is None:
            return RUN_FAILED
        if self._signals.first == signal.SIGUSR1:
            self._give_up_stalled(run_ids)
            is_left = not self._tickets.latest().keys().isdisjoint(run_ids)
            if is_left and not commands.requeue(self._number):
                print(_NOT_REQUEUED, flush=True)  # noqa: T201  into the job's log
        return CUT_SHORT_EXIT

    def _give_up_stalled(self, run_ids: Sequence[str]) -> None:
        most = self._policy.attempts_without_step
        for run_id in run_ids:
            number = self._ledger.last_attempt(run_id)
            state = attempt_state(self._ledger, run_id, number) if number else Open.ABANDONED
            if isinstance(state, Open) or state.outcome != Outcome.PREEMPTED:
                continue
            ticket = self._tickets.of(run_id)
            first = ticket.number if ticket and ticket.from_scratch else 1
            if _attempts_without_step(self._ledger, run_id, range(first, number + 1)) < most:
                continue
            attempt = Attempt.load(self._ledger, run_id, number)
            assert attempt is not None
            reason = f"no step was saved within the job's time limit in {most} attempts in a row"
            attempt.end(End(outcome=Outcome.TIMED_OUT, reason=reason), self._ledger)
            self._tickets.remove(run_id)


_NOTE = "slurm.json"
_NOT_REQUEUED = (
    "The job must be requeued to resume; scontrol could not requeue it. Repeat the command: it "
    "submits the run again, which resumes from its last checkpoint."
)


def _job_number() -> str:
    """This job's id for SLURM's programs; for an array element, the array's and its index."""
    if "SLURM_ARRAY_JOB_ID" not in os.environ:
        return os.environ["SLURM_JOB_ID"]
    return f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"


def _own_log() -> Path:
    """The file that this job prints to."""
    return Path(os.readlink("/proc/self/fd/1"))  # noqa: PTH115  may be no path


def _task_of(ticket: Ticket, number: int) -> Task:
    scratch = ticket.from_scratch and number == ticket.number
    spec = run_spec(
        ticket.spec.config, ticket.spec.facts
    )  # the same run as was submitted: the ticket checks its id
    return Task(spec=spec, number=number, from_scratch=scratch)


def _attempts_without_step(ledger: Ledger, run_id: str, numbers: Iterable[int]) -> int:
    """Number of consecutive attempts, up to the last one, that made no progress [count]."""
    stalled = furthest = 0
    for number in numbers:
        attempt = Attempt.load(ledger, run_id, number)
        steps = attempt.steps() if attempt else 0
        stalled = 0 if steps > furthest else stalled + 1
        furthest = max(furthest, steps)
    return stalled
