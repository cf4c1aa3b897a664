"""A job on its node: executes its runs, handles SLURM's signals, exits with a meaningful code.

The job requeues itself: after a signal its runs checkpoint after the current step and exit, and
the job goes back into the queue. It never imports torch.
"""

import json
import os
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from types import FrameType

from sweeper.launch.first_ends import SharedFirstEnds
from sweeper.launch.local.launcher import run_here
from sweeper.launch.local.slots import Machine, inspect_machine
from sweeper.launch.slurm import commands
from sweeper.launch.slurm.nodes import SrunRanks
from sweeper.launch.slurm.tickets import MAY_GO_ON, Ticket, Tickets
from sweeper.planning.plan import Event, LazyTasks, Task
from sweeper.spec.outcomes import DONE, RUN_FAILED, Outcome
from sweeper.spec.run_spec import run_spec
from sweeper.spec.values import Count, NotNegative, Settings
from sweeper.store.attempt import Attempt, End, Open, attempt_state, recover_attempt
from sweeper.store.ledger import Ledger
from sweeper.store.publish import read_mapping

#: Exit code of a job that a signal ended before its runs had results (EX_TEMPFAIL of sysexits.h).
CUT_SHORT_EXIT = 75

_JOB_FILE = "slurm.json"
_NO_SCONTROL = ", and scontrol, which would requeue it, is not available (repeat the command)"
_NOT_REQUEUED = (
    "The job must be requeued to resume; scontrol could not requeue it. Repeat the command: it "
    "submits the run again, which resumes from its last checkpoint."
)


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


def run_element(results: str, submission: str, run_ids: Sequence[str], policy: JobPolicy) -> None:
    """Execute a job on its first node; called by submitit. SystemExit with the job's exit code."""
    signals = FirstSignal()
    for number in (signal.SIGUSR1, signal.SIGTERM):  # the ranks, signalled too, ignore SIGTERM
        signal.signal(number, signals.record)
    raise SystemExit(Job(Ledger(Path(results)), submission, policy, signals).run(run_ids))


class FirstSignal:
    """The first signal from SLURM: SIGUSR1 before the time limit, SIGTERM if it ends the job."""

    def __init__(self) -> None:
        self.number: signal.Signals | None = None
        self.at = 0.0

    def record(self, number: int, frame: FrameType | None) -> None:
        """The signal handler."""
        del frame
        if self.number is None:
            self.number, self.at = signal.Signals(number), time.monotonic()


class Job:
    """The job of this process, an element of a submission's array."""

    def __init__(
        self, ledger: Ledger, submission: str, policy: JobPolicy, signals: FirstSignal
    ) -> None:
        self._ledger, self._policy, self._signals = ledger, policy, signals
        self._tickets = Tickets(ledger)
        self._first_ends = SharedFirstEnds(self._tickets.folder / submission / "first_ends")
        array = os.environ.get("SLURM_ARRAY_JOB_ID")
        #: The job's id for SLURM's programs; for an array element, the array's and its index.
        self._id = (
            f"{array}_{os.environ['SLURM_ARRAY_TASK_ID']}" if array else os.environ["SLURM_JOB_ID"]
        )
        self._running: dict[str, Attempt] = {}
        self._started: set[str] = set()
        self._stopping: set[str] = set()

    def run(self, run_ids: Sequence[str]) -> int:
        """Execute the runs that have not ended; return the exit code."""
        found = self._claim_tasks(run_ids)
        try:
            known = list(islice(found, 1) if self._policy.pulling_jobs else found)
        except ValueError as error:
            print(error, flush=True)  # noqa: T201  into the job's log
            return RUN_FAILED
        if not known:
            return self._exit_code(run_ids)
        if why := self._first_ends.why_stop:
            for task in known:  # their rows say why, and repeating the command resubmits them
                if attempt := Attempt.begin(task.spec, self._ledger, task.number):
                    attempt.end(End(outcome=Outcome.PREEMPTED, reason=why), self._ledger)
                self._tickets.remove(task.spec.run_id)
            return RUN_FAILED
        is_alone = len(known) == 1 and not self._policy.pulling_jobs
        name = known[0].spec.point.replace(" ", "_")
        name += "" if is_alone else "_and_more"
        commands.run_program("scontrol", "update", f"JobId={self._id}", f"JobName={name}")
        policy, ranks = self._policy, None
        machine = inspect_machine(jobs=policy.runs_at_a_time, runs_per_gpu=policy.runs_per_gpu)
        if known[0].spec.config.num_nodes > 1:  # one after the other, each on all nodes
            machine, ranks = Machine(cores=1, jobs=1, device=machine.device), SrunRanks()
        events = run_here(
            LazyTasks(known, chain(known, found)),
            self._ledger,
            machine,
            why_stopped=self._why_stopped,
            may_start=lambda: self._signals.number is None,
            ranks=ranks,
            refuse_early=False,  # a run that cannot start gets a row
        )
        for event in events:
            self._handle(event)
            if self._must_stop():
                events.close()
                break
        return self._exit_code(run_ids)

    def _claim_tasks(self, run_ids: Sequence[str]) -> Iterator[Task]:
        """The attempts to make, each determined when it is taken; no more if the first runs failed.

        ValueError if a ticket was written by another version of this code.
        """
        numbers = self._tickets.latest_numbers()
        for run_id in run_ids:
            ticket = self._tickets.read(run_id, numbers[run_id]) if run_id in numbers else None
            number = self._next_attempt(ticket) if ticket else None
            if ticket is None or number is None:
                continue
            # the same run as was submitted: reading the ticket's spec checks its id
            spec = run_spec(ticket.spec.config)
            if self._started and self._first_ends.why_stop:
                return
            scratch = ticket.from_scratch and number == ticket.number
            yield Task(spec=spec, number=number, from_scratch=scratch)

    def _next_attempt(self, ticket: Ticket) -> int | None:
        """The attempt to make; None if the run has ended or another process is training it."""
        run_id = ticket.run_id
        number = max(ticket.number, self._ledger.last_attempt(run_id))
        folder = self._ledger.attempt_folder(run_id, number)
        if not folder.exists():
            return number
        state = attempt_state(self._ledger, run_id, number)
        if state is Open.HELD and read_mapping(folder / _JOB_FILE).get("job") != self._id:
            return None  # otherwise this job held it before SLURM requeued it
        is_open = isinstance(state, Open)
        end = recover_attempt(self._ledger, run_id, number) if is_open else state
        if end and end.outcome not in MAY_GO_ON:
            self._tickets.remove(run_id)
            return None
        return number + 1

    def _handle(self, event: Event) -> None:
        for text in event.said:
            print(text, flush=True)  # noqa: T201  into the job's log
        for attempt in event.began:
            self._running[attempt.spec.run_id] = attempt
            self._started.add(attempt.spec.run_id)
            nodes = os.environ.get("SLURM_JOB_NODELIST", "")
            about = json.dumps({"job": self._id, "nodes": nodes})
            (attempt.folder / _JOB_FILE).write_text(about)
        for run_id, end in event.ended.items():
            if attempt := self._running.pop(run_id, None):
                is_early = attempt.is_early_failure(end) and not attempt.spec.config.keep_going
                self._first_ends.add(run_id, end.reason, is_early=is_early)
            if end.outcome != Outcome.PREEMPTED or self._signals.number is None:
                self._tickets.remove(run_id)

    def _must_stop(self) -> bool:
        """After a signal, stop runs gracefully; True once all ended or the grace time is over."""
        if self._signals.number is None:
            return False
        for run_id in self._running.keys() - self._stopping:
            self._running[run_id].request_graceful_stop()
            self._stopping.add(run_id)
        by_term = self._signals.number == signal.SIGTERM
        grace_s = self._policy.term_grace_s if by_term else self._policy.grace_s
        return not self._running or time.monotonic() - self._signals.at > grace_s

    def _why_stopped(self) -> str:
        if self._signals.number == signal.SIGUSR1:
            lacks = "" if shutil.which("scontrol") else _NO_SCONTROL
            return f"its job's time limit was near{lacks}: stopped"
        log = Path(os.readlink("/proc/self/fd/1"))  # noqa: PTH115  may be no path
        if commands.was_cancelled(log):
            return "cancelled with scancel: stopped"
        return "SLURM took its nodes away: stopped"

    def _exit_code(self, run_ids: Sequence[str]) -> int:
        """The job's exit code; near the time limit it is first requeued if a run should resume."""
        ended = self._ledger.ended()
        ours = self._started if self._policy.pulling_jobs else run_ids
        outcomes = [ended[run_id].outcome for run_id in ours if run_id in ended]
        if len(outcomes) == len(ours) and all(outcome.is_result for outcome in outcomes):
            return DONE
        if self._signals.number is None:
            return RUN_FAILED
        if self._signals.number == signal.SIGUSR1:
            for run_id in run_ids:
                self._give_up_if_stalled(run_id)
            is_left = not self._tickets.latest_numbers().keys().isdisjoint(run_ids)
            if is_left and not commands.requeue_job(self._id):
                print(_NOT_REQUEUED, flush=True)  # noqa: T201  into the job's log
        return CUT_SHORT_EXIT

    def _give_up_if_stalled(self, run_id: str) -> None:
        """End a run as timed out if too many attempts in a row saved no step."""
        last = self._ledger.last_attempt(run_id)
        state = attempt_state(self._ledger, run_id, last) if last else Open.ABANDONED
        if isinstance(state, Open) or state.outcome != Outcome.PREEMPTED:
            return
        ticket = self._tickets.find(run_id)
        attempts = [
            Attempt.load(self._ledger, run_id, number)
            for number in range(ticket.number if ticket and ticket.from_scratch else 1, last + 1)
        ]
        stalled = furthest = 0
        for attempt in attempts:
            steps = attempt.steps() if attempt else 0
            stalled = 0 if steps > furthest else stalled + 1
            furthest = max(furthest, steps)
        most, latest = self._policy.attempts_without_step, attempts[-1]
        if stalled >= most and latest:
            reason = f"no step was saved within the job's time limit in {most} attempts in a row"
            latest.end(End(outcome=Outcome.TIMED_OUT, reason=reason), self._ledger)
            self._tickets.remove(run_id)
