"""What a job does on its node: makes its runs, heeds SLURM's signals, leaves with a true exit code.

The job owns its requeue: at a signal its runs save after the step they are in and leave, and it
goes back into the queue. It never imports torch.
"""

import json
import os
import signal
import time
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from multiprocessing import forkserver
from pathlib import Path
from types import FrameType

from sweeper.launch.local.launcher import run_here
from sweeper.launch.local.slots import this_machine
from sweeper.launch.slurm import commands
from sweeper.launch.slurm.nodes import run_on_nodes
from sweeper.launch.slurm.tickets import MAY_GO_ON, Ticket, Tickets
from sweeper.planning.tasks import Event, Task
from sweeper.spec import exit_codes
from sweeper.spec.outcomes import Outcome
from sweeper.store.attempt import Attempt, recover, standing
from sweeper.store.ledger import Ledger

#: Exit code of a job that was cut short and could not go back into the queue (sysexits.h).
CUT_SHORT_EXIT = 75


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPolicy:
    """What a job does when its time is up, and how it shares its nodes.

    Attributes:
        warning_s: SLURM signals this long before the time limit [seconds].
        grace_s: after that warning, wait this long for runs to save and leave [seconds].
        term_grace_s: after SIGTERM, wait this long for runs to save and leave [seconds].
        attempts_without_step: after this many in a row the run is timed_out [count].
        runs_at_a_time: of the runs in one job [count].
        runs_per_gpu: runs that share a GPU [count].
    """

    warning_s: int
    grace_s: float
    term_grace_s: float
    attempts_without_step: int
    runs_at_a_time: int
    runs_per_gpu: int


def run_element(results: str, run_ids: Sequence[str], policy: JobPolicy) -> None:
    """A job's whole life; submitit calls it on the first node of the job.

    Args:
        results: the results folder.
        run_ids: the job's runs; each has a ticket unless it has ended.
        policy: what to do when its time is up.

    Raises:
        SystemExit: always, with the job's exit code.
    """
    raise SystemExit(_Job(Ledger(Path(results)), policy, _noted_signals()).run(run_ids))


class _Signals:
    """What SLURM has signalled: SIGUSR1 before the time limit, SIGTERM at preemption or scancel."""

    def __init__(self) -> None:
        self.first: signal.Signals | None = None
        self.at = 0.0

    def note(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self.first is None:
            self.first, self.at = signal.Signals(number), time.monotonic()


def _noted_signals() -> _Signals:
    """Note signals from here on; the ranks, which SLURM signals too, do not heed SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    forkserver.set_forkserver_preload(["lightning_modules.worker"])
    forkserver.ensure_running()  # the ranks are its children and ignore what it ignores
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

    def run(self, run_ids: Sequence[str]) -> int:
        """Make the runs that have not ended."""
        tickets = [ticket for run_id in run_ids if (ticket := self._tickets.of(run_id))]
        try:
            tasks = [task for ticket in tickets if (task := self._task(ticket))]
        except ValueError as error:
            print(error, flush=True)  # noqa: T201  into the job's log
            return exit_codes.RUN_FAILED
        if tasks:
            self._rename(tasks)
            launched = self._launched(tasks)
            for event in launched:
                self._take_in(event)
                if self._must_stop():
                    launched.close()
                    break
        return self._leave(run_ids)

    def _task(self, ticket: Ticket) -> Task | None:
        """The attempt to make, or None if the run has ended or another process is at it."""
        number = max(ticket.number, self._ledger.last_attempt(ticket.run_id))
        stands = standing(self._ledger, ticket.run_id, number)
        if not self._ledger.attempt_folder(ticket.run_id, number).exists():
            return _made_of(ticket, number)
        if stands is True and not self._is_mine(ticket.run_id, number):
            return None
        if isinstance(stands, bool):  # held by this job before SLURM put it back into the queue
            recover(self._ledger, ticket.run_id, number)
            stands = standing(self._ledger, ticket.run_id, number)
        if isinstance(stands, bool) or stands[0] in MAY_GO_ON:
            return _made_of(ticket, number + 1)
        self._tickets.remove(ticket.run_id)
        return None

    def _is_mine(self, run_id: str, number: int) -> bool:
        try:
            told = json.loads((self._ledger.attempt_folder(run_id, number) / _NOTE).read_text())
        except FileNotFoundError:
            return False
        return told["job"] == self._number

    def _rename(self, tasks: Sequence[Task]) -> None:
        name = tasks[0].spec.point.replace(" ", "_")
        commands.rename(self._number, name if len(tasks) == 1 else f"{name}_and_more")

    def _launched(self, tasks: Sequence[Task]) -> Generator[Event]:
        policy = self._policy
        machine = this_machine(jobs=policy.runs_at_a_time, runs_per_gpu=policy.runs_per_gpu)
        if tasks[0].spec.config["num_nodes"] > 1:
            return run_on_nodes(
                tasks,
                self._ledger,
                machine.device,
                why_stopped=self._why_stopped,
                may_start=self._may_start,
            )
        return run_here(
            tasks,
            self._ledger,
            machine,
            why_stopped=self._why_stopped,
            may_start=self._may_start,
        )

    def _may_start(self) -> bool:
        return self._signals.first is None

    def _take_in(self, event: Event) -> None:
        for attempt in event.began:
            self._running[attempt.spec.run_id] = attempt
            node = os.environ.get("SLURM_JOB_NODELIST", "")
            note = json.dumps({"job": self._number, "nodes": node})
            (attempt.folder / _NOTE).write_text(note)
        for end in event.ended:
            self._running.pop(end.run_id, None)
            if end.outcome != Outcome.PREEMPTED or self._signals.first is None:
                self._tickets.remove(end.run_id)

    def _must_stop(self) -> bool:
        """After a signal ask runs to leave: whether all have, or the grace is over."""
        if self._signals.first is None:
            return False
        for run in self._running.values():
            if not run.is_asked_to_leave:
                run.ask_to_leave()
        by_term = self._signals.first == signal.SIGTERM
        grace_s = self._policy.term_grace_s if by_term else self._policy.grace_s
        return not self._running or time.monotonic() - self._signals.at > grace_s

    def _why_stopped(self) -> str:
        if self._signals.first == signal.SIGUSR1:
            return f"the time limit of its job was near{commands.no_requeue()}: stopped"
        if commands.was_cancelled(_own_log()):
            return "cancelled with scancel: stopped"
        return "SLURM took its nodes away: stopped"

    def _leave(self, run_ids: Sequence[str]) -> int:
        """Requeue if a run is to go on, and say how it went."""
        ended = self._ledger.ended()
        outcomes = [ended[run_id].outcome for run_id in run_ids if run_id in ended]
        if len(outcomes) == len(run_ids) and all(outcome.is_result for outcome in outcomes):
            return exit_codes.DONE
        if self._signals.first is None:
            return exit_codes.RUN_FAILED
        if self._signals.first == signal.SIGUSR1:
            self._give_up_stalled(run_ids)
            left = [run_id for run_id in run_ids if self._tickets.of(run_id)]
            if left and not commands.requeue(self._number):
                print(_NOT_REQUEUED, flush=True)  # noqa: T201  into the job's log
        return CUT_SHORT_EXIT

    def _give_up_stalled(self, run_ids: Sequence[str]) -> None:
        most = self._policy.attempts_without_step
        for run_id in run_ids:
            number = self._ledger.last_attempt(run_id)
            stands = standing(self._ledger, run_id, number) if number else False
            if isinstance(stands, bool) or stands[0] != Outcome.PREEMPTED:
                continue
            ticket = self._tickets.of(run_id)
            first = ticket.number if ticket and ticket.from_scratch else 1
            if _attempts_without_step(self._ledger, run_id, range(first, number + 1)) < most:
                continue
            attempt = Attempt.found(self._ledger, run_id, number)
            assert attempt is not None
            reason = f"no step was saved within the job's time limit in {most} attempts in a row"
            attempt.end(Outcome.TIMED_OUT, reason, self._ledger)
            self._tickets.remove(run_id)


_NOTE = "slurm.json"
_NOT_REQUEUED = (
    "The job must go back into the queue to go on; scontrol could not put it there. Repeat the "
    "command: it submits the run again, which goes on from where it was saved."
)


def _job_number() -> str:
    """This job as SLURM's programs know it; the bare number of a first element is the array's."""
    if "SLURM_ARRAY_JOB_ID" not in os.environ:
        return os.environ["SLURM_JOB_ID"]
    return f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"


def _own_log() -> Path:
    """The file that this job prints to."""
    return Path(os.readlink("/proc/self/fd/1"))  # noqa: PTH115  may be no path


def _made_of(ticket: Ticket, number: int) -> Task:
    scratch = ticket.from_scratch and number == ticket.number
    return Task(spec=ticket.spec, number=number, from_scratch=scratch)


def _attempts_without_step(ledger: Ledger, run_id: str, numbers: Iterable[int]) -> int:
    """How many attempts in a row, up to the last one, went no further than those before."""
    stalled = furthest = 0
    for number in numbers:
        attempt = Attempt.found(ledger, run_id, number)
        steps = attempt.steps() if attempt else 0
        stalled = 0 if steps > furthest else stalled + 1
        furthest = max(furthest, steps)
    return stalled
