"""The SLURM launcher: submits a sweep as job arrays, then follows the jobs or exits.

No connection is kept: jobs execute runs and publish rows, and this process reads the queue and the
ledger. It attaches to runs that already have a job and never submits them again.
"""

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from sweeper.launch.slurm import commands
from sweeper.launch.slurm.submit import (
    Array,
    Refused,
    Request,
    check_path,
    group_into_arrays,
    submit,
)
from sweeper.launch.tickets import Jobs, Ticket, Tickets
from sweeper.planning.plan import Event, Task, Tasks
from sweeper.spec.outcomes import MAY_GO_ON, Outcome
from sweeper.spec.sentences import several
from sweeper.store.attempt import Attempt, End, Open, attempt_state, recover_attempt
from sweeper.store.ledger import Ledger

_TICK_S = 0.2
_SOON_S = 5.0
_SBATCH_WAITS = (
    "SLURM has not accepted the jobs yet: its queue is full (MaxJobCount) or its controller is "
    "busy. sbatch keeps retrying for about two minutes; Ctrl-C stops it, and repeating the command "
    "later submits the rest."
)
_JOBS_STAY = (
    "What is queued or running in SLURM stays there; repeat the command to attach to it, or use "
    "scancel to end it."
)
_STAYS = (
    "hydra.launcher.detach has no effect here: which runs come next follows from the results of "
    "these, so the command stays. Its jobs outlive it; repeat it to go on."
)
_SQUEUE_SILENT = (
    "squeue must respond, to show which runs are already queued; it does not. Try again later."
)
_LOOKS_BEFORE_GONE = 2  # a requeued job may be between two states

#: SLURM's reasons of squeue with which every job waits for its turn.
_USUAL = {"None", "Priority", "Resources", "BeginTime", "Dependency", "JobArrayTaskLimit"}


def run_on_slurm(tasks: Tasks, ledger: Ledger, request: Request) -> Generator[Event]:
    """Submit runs that have no job yet, then follow all until they end, with an event per tick.

    Tasks that are available together are submitted together; nodes must see the ledger's folder
    under the same path. ValueError if this host cannot submit, or SLURM refuses the first jobs.
    """
    commands.check_submit_host()
    source, stays_unasked = iter(tasks), request.detach
    left: list[Task] = []
    sweep = _Sweep(Ledger(check_path(ledger.results)), request)
    try:
        while sweep.is_open or sweep.followed:
            for task in source:
                if task is None:
                    break
                left.append(task)
            else:
                sweep.is_open = False
            if left:
                refused = yield from sweep.submit(left)
                left = refused if sweep.is_open else []  # later tasks depend on them
            if request.detach and not sweep.is_open:
                yield Event(is_detached=True)
                return
            if stays_unasked:
                stays_unasked = False
                yield Event(said=[_STAYS])
            yield sweep.check_runs()
            for _ in range(max(1, round(request.poll_s / _TICK_S))):
                time.sleep(_TICK_S)
                yield Event()
    except KeyboardInterrupt:
        yield Event(said=[_JOBS_STAY] if sweep.followed else [])
        raise


def _wait_for_sbatch(submitted: Callable[[], str]) -> Generator[Event, None, str]:
    """Wait for sbatch, which retries for minutes while the queue is full, and tell the user."""
    with ThreadPoolExecutor(1) as thread:
        future = thread.submit(submitted)
        say_at: float | None = time.monotonic() + _SOON_S
        while not future.done():
            time.sleep(_TICK_S)
            if say_at is None or time.monotonic() < say_at:
                yield Event()
            else:
                say_at = None
                yield Event(said=[_SBATCH_WAITS])
        return future.result()


@dataclass(slots=True)
class _Followed:
    task: Task
    shown: int = 0
    looks_without_job: int = 0


class _Sweep:
    """The runs of a command, queued or running; more may be added while it is open."""

    def __init__(self, ledger: Ledger, request: Request) -> None:
        self._ledger, self._request = ledger, request
        self._tickets = Tickets(ledger)
        self._has_begun = False
        self._warned: set[str] = set()
        self.followed: dict[str, _Followed] = {}
        self.is_open = True

    def submit(self, tasks: Sequence[Task]) -> Generator[Event, None, list[Task]]:
        """Attach to runs that have a job, submit the others, and return those that were refused.

        ValueError if SLURM refuses the first submission and there is nothing to attach to.
        """
        jobs = self._tickets.query_jobs()
        if jobs is None:
            yield self._report_refusal(len(tasks), _SQUEUE_SILENT)
            return [*tasks]
        known = self._tickets.read_all()
        new: list[Task] = []
        for task in tasks:
            run_id, number = task.spec.run_id, task.number
            self.followed[run_id] = _Followed(task)
            ticket = known.get(run_id)
            is_begun = self._ledger.attempt_folder(run_id, number).exists()
            is_held = is_begun and attempt_state(self._ledger, run_id, number) is Open.HELD
            if not is_held and not (ticket and jobs.has(ticket)):
                new.append(task)
        if attached := len(tasks) - len(new):
            are = "is" if attached == 1 else "are"
            text = (
                f"{attached} of {several(len(tasks), 'run')} {are} already queued or running, with "
                "the partition, time and memory of their submission; scancel and repeat to change "
                "them."
            )
            yield Event(said=[text], queued=[task.spec.run_id for task in tasks])
            self._has_begun = True
        refused: list[Task] = []
        for array in group_into_arrays(new, self._request, commands.max_array_size()):
            refused += yield from self._submit_array(array, known)
        return refused

    def _submit_array(
        self, array: Array, known: Mapping[str, Ticket]
    ) -> Generator[Event, None, list[Task]]:
        folder = self._tickets.open_submission(array.name)
        runs: list[str] = []
        for index, task in array.tasks:
            run_id = task.spec.run_id
            ticket = Ticket(
                run_id=run_id,
                config=task.spec.config.resolved,
                number=task.number,
                from_scratch=task.from_scratch,
                submission=array.name,
                index=index,
            )
            if self._tickets.claim(ticket, instead_of=known.get(run_id)):
                runs.append(run_id)
        results = self._ledger.results
        try:
            job = yield from _wait_for_sbatch(
                lambda: submit(array, self._request, results=results, folder=folder)
            )
        except Refused as error:
            for run_id in runs:
                self._tickets.remove(run_id)
                del self.followed[run_id]
            self._tickets.discard_submission(array.name)
            yield self._report_refusal(len(runs), str(error))
            return [task for _, task in array.tasks if task.spec.run_id in runs]
        self._tickets.record_job(array.name, job)
        self._has_begun = True
        jobs = "an array of " * (len(array.elements) > 1) + several(len(array.elements), "job")
        text = (
            f"Submitted {several(len(runs), 'run')} as {jobs}, number {job}. Ctrl-C leaves what is "
            "queued in the queue; repeat the command to attach to it."
        )
        yield Event(said=[text], queued=runs)
        return []

    def _report_refusal(self, count: int, why: str) -> Event:
        """Say once why runs were not submitted; ValueError if nothing was submitted before."""
        if not self._has_begun:
            raise ValueError(why)
        is_news = why not in self._warned
        self._warned.add(why)
        again = f" Meanwhile this command tries again every {self._request.poll_s:g} s."
        text = f"{several(count, 'run')} not submitted. {why}{again if self.is_open else ''}"
        return Event(said=[text] * is_news)

    def check_runs(self) -> Event:
        """Compare the followed runs with the queue, the running attempts and the rows."""
        jobs = self._tickets.query_jobs()
        known = self._tickets.read_all()
        active = dict(self._ledger.active())
        rows = self._ledger.ended()
        began, queued = list[Attempt](), list[str]()
        ended: dict[str, End] = {}
        for run_id, run in list(self.followed.items()):
            number = active.get(run_id, 0)
            if number > run.shown and (attempt := Attempt.load(self._ledger, run_id, number)):
                run.shown = number
                began.append(attempt)
            row, ticket = rows.get(run_id), known.get(run_id)
            if row and row.attempt >= run.task.number and row.outcome not in MAY_GO_ON:
                ended |= self._settle_run(run_id, row.attempt)
            elif jobs is not None and not (ticket and jobs.has(ticket)):
                run.looks_without_job += 1
                if run.looks_without_job >= _LOOKS_BEFORE_GONE:
                    ended |= self._end_without_job(run, ticket)
            else:
                run.looks_without_job = 0
                if run.shown and attempt_state(self._ledger, run_id, run.shown) is not Open.HELD:
                    queued.append(run_id)
        why = self._say_why_jobs_wait(known, jobs)
        return Event(began=began, ended=ended, queued=queued, said=why)

    def _say_why_jobs_wait(self, known: Mapping[str, Ticket], jobs: Jobs | None) -> list[str]:
        """A sentence on each of SLURM's reasons but the usual ones, once."""
        found = [job for ticket in known.values() if jobs and (job := jobs.find(ticket))]
        # what follows a comma differs from one look to the next: UnavailableNodes:…
        reasons = {job.reason.partition(",")[0] for job in found if job.state == "PD"}
        reasons -= _USUAL | self._warned
        self._warned |= reasons
        return [
            f"Jobs wait because of {reason} (`man squeue`): if that cannot pass, scancel ends them."
            for reason in sorted(reasons)
        ]

    def _settle_run(self, run_id: str, number: int) -> Mapping[str, End]:
        del self.followed[run_id]
        self._tickets.remove(run_id)
        state = attempt_state(self._ledger, run_id, number)
        if isinstance(state, Open):  # the row is published just before the release
            row = self._ledger.rows([run_id], ["outcome", "reason"])[run_id]
            state = End(outcome=Outcome(row["outcome"]), reason=row["reason"])
        return {run_id: state}

    def _end_without_job(self, run: _Followed, ticket: Ticket | None) -> Mapping[str, End]:
        """How a run without a job ended; empty while its last attempt may still be running."""
        run_id = run.task.spec.run_id
        number = self._ledger.last_attempt(run_id)
        if number < run.task.number:
            if attempt := Attempt.begin(run.task.spec, self._ledger, run.task.number):
                reason = "its job left the queue before the run started: cancelled or broken."
                reason += f" See {self._tickets.find_log(ticket)}." if ticket else ""
                attempt.end(End(outcome=Outcome.PREEMPTED, reason=reason), self._ledger)
            return self._settle_run(run_id, run.task.number)
        state = attempt_state(self._ledger, run_id, number)
        if state is Open.ABANDONED:
            state = recover_attempt(self._ledger, run_id, number) or Open.HELD
        if state is Open.HELD:
            return {}
        return self._settle_run(run_id, number)
