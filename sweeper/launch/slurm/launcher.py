"""The SLURM launcher: submits workers for each layout as job arrays, then follows rows or exits.

No connection is kept: jobs take runs from the queue of their layout and publish rows. Runs that are
queued already are only followed, and jobs are submitted for those that have none.
"""

import secrets
import time
from collections import Counter
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor

from sweeper.launch.queue.launcher import follow
from sweeper.launch.slurm import commands
from sweeper.launch.slurm.commands import Queued
from sweeper.launch.slurm.submissions import Layout, list_jobs
from sweeper.launch.slurm.submit import (
    Array,
    JobRequest,
    Refused,
    check_path,
    group_by_layout,
    jobs_for,
    make_arrays,
    submit,
)
from sweeper.planning.plan import Event, Task, Tasks
from sweeper.spec.outcomes import Outcome
from sweeper.spec.run_spec import RunSpec
from sweeper.spec.sentences import several
from sweeper.store.attempt import Attempt, End, Open, attempt_state
from sweeper.store.ledger import Ledger
from sweeper.store.recovery import recover_attempt

_TICK_S = 0.2
_SOON_S = 5.0
_SBATCH_WAITS = (
    "SLURM has not accepted the jobs yet: its queue is full (MaxJobCount) or its controller is "
    "busy. sbatch keeps retrying for about two minutes; Ctrl-C stops it, and repeating the command "
    "later submits the rest."
)
_JOBS_STAY = (
    "What is queued or running in SLURM stays there; repeat the command to attach to it, or use "
    "`sweeper stop` or scancel to end it."
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


def run_on_slurm(tasks: Tasks, ledger: Ledger, request: JobRequest) -> Generator[Event]:
    """Queue runs and submit workers for them, then follow all until they end.

    Tasks that are available together are submitted together; nodes must see the ledger's folder
    under the same path. ValueError if this host cannot submit, or SLURM refuses the first jobs.
    """
    commands.check_submit_host()
    cluster = _Cluster(Ledger(check_path(ledger.results)), request)
    try:
        yield from follow(tasks, ledger, cluster, detach=request.detach, stays=_STAYS)
    except KeyboardInterrupt:
        yield Event(said=[_JOBS_STAY] if cluster.tasks else [])
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


class _Cluster:
    """The layouts of a command's runs, whose workers are SLURM's jobs."""

    def __init__(self, ledger: Ledger, request: JobRequest) -> None:
        self._ledger, self._request = ledger, request
        self.look_every_s, self.is_ours = request.poll_s, True
        self._layouts: dict[str, Layout] = {}
        self._looks_without_job: dict[str, int] = {}
        self._warned: set[str] = set()
        #: The runs that were queued, by id.
        self.tasks: dict[str, Task] = {}
        self._unserved = Counter[str]()  # runs of a layout for which jobs of others seemed free

    def list_runs(self) -> set[str]:
        """The ids of the queued runs."""
        return set[str]().union(*(layout.queue.list_runs() for layout in self._layouts.values()))

    def add(self, tasks: list[Task], *, is_open: bool) -> Generator[Event, None, list[Task]]:
        """Queue the runs that are not queued, and submit as many jobs as lack.

        Returns those that were refused; ValueError if SLURM refuses the first submission.
        """
        groups = group_by_layout(tasks)
        layouts = {name: Layout(self._ledger, name) for name in groups}
        jobs = list_jobs([*layouts.values()])
        if jobs is None:
            yield self._report_refusal(len(tasks), _SQUEUE_SILENT, is_open=is_open)
            return tasks
        refused, attached = list[Task](), 0
        for name, group in groups.items():
            layout = self._layouts[name] = layouts[name]
            alive, known = layout.alive(jobs), layout.queue.list_runs()
            busy = {i for i in (t.spec.run_id for t in group) if self._is_running(i)}
            new = [task for task in group if task.spec.run_id not in known | busy]
            lacking = jobs_for(len(known) + len(new), self._request) - len(alive)
            if layout.is_being_submitted:
                lacking = jobs_for(len(new), self._request)
            self._unserved[name] += max(0, jobs_for(len(new), self._request) - max(0, lacking))
            is_served = bool(alive) or layout.is_being_submitted
            submitted = new if is_served else [t for t in group if t.spec.run_id not in busy]
            attached += len(group) - len(submitted)
            self.tasks |= {task.spec.run_id: task for task in group}
            largest = commands.max_array_size()
            arrays = [*make_arrays(submitted or group, lacking, self._request, largest)]
            in_arrays = {task.spec.run_id for array in arrays for task in array.tasks}
            others = [task for task in new if task.spec.run_id not in in_arrays]
            layout.queue.add(others, secrets.token_hex(6))  # for the jobs that there are
            for array in arrays:
                refused += yield from self._submit(array, layout, known, is_open=is_open)
        if attached:
            are = "is" if attached == 1 else "are"
            text = (
                f"{attached} of {several(len(tasks), 'run')} {are} already queued or running, with "
                "the partition, time and memory of their submission; scancel and repeat to change "
                "them."
            )
            yield Event(said=[text], queued=[task.spec.run_id for task in tasks])
        return refused

    def _is_running(self, run_id: str) -> bool:
        last = self._ledger.last_attempt(run_id)
        return bool(last) and attempt_state(self._ledger, run_id, last) is Open.HELD

    def _submit(
        self, array: Array, layout: Layout, known: set[str], *, is_open: bool
    ) -> Generator[Event, None, list[Task]]:
        folder = layout.open_submission(array.name)
        runs = [task.spec.run_id for task in array.tasks]
        layout.queue.add(array.tasks, array.name)
        results = self._ledger.results
        try:
            job = yield from _wait_for_sbatch(
                lambda: submit(array, self._request, results=results, folder=folder)
            )
        except BaseException as error:
            for run_id in {*runs} - known:
                layout.queue.remove(run_id)
                del self.tasks[run_id]
            layout.discard_submission(array.name)
            if not isinstance(error, Refused):
                raise
            yield self._report_refusal(len(runs), str(error), is_open=is_open)
            return [*array.tasks]
        layout.record_job(array.name, job)
        self._looks_without_job[layout.name] = 0
        jobs = "an array of " * (array.jobs > 1) + several(array.jobs, "job")
        text = (
            f"Submitted {several(len(runs), 'run')} as {jobs}, number {job}. Ctrl-C leaves what is "
            "queued in the queue; repeat the command to attach to it."
        )
        yield Event(said=[text], queued=runs)
        return []

    def _report_refusal(self, count: int, why: str, *, is_open: bool) -> Event:
        """Say once why runs were not submitted; ValueError if nothing was submitted before."""
        if not self.tasks:
            raise ValueError(why)
        is_news = why not in self._warned
        self._warned.add(why)
        again = f" Meanwhile this command tries again every {self.look_every_s:g} s."
        text = f"{several(count, 'run')} not submitted. {why}{again if is_open else ''}"
        return Event(said=[text] * is_news)

    def look(self) -> list[str]:
        """End runs whose jobs are gone, or submit more; why jobs wait, once for each reason.

        A job that was about to end when a run was queued takes it no more.
        """
        jobs = list_jobs([*self._layouts.values()])
        reasons, said = set[str](), list[str]()
        for name, layout in self._layouts.items() if jobs is not None else ():
            alive: list[Queued] = layout.alive(jobs or [])
            # what follows a comma differs from one look to the next: UnavailableNodes:...
            reasons |= {job.reason.partition(",")[0] for job in alive if job.state == "PD"}
            runs = layout.queue.list_runs()
            ours = [self.tasks[run_id] for run_id in runs if run_id in self.tasks]
            is_gone = not alive and not layout.is_being_submitted
            looks = self._looks_without_job.get(name, 0) + 1 if is_gone else 0
            self._looks_without_job[name] = looks
            lacking = jobs_for(len(runs), self._request) - len(alive)
            if ours and (due := min(max(lacking, 0), self._unserved[name])):
                self._unserved[name] = 0
                for array in make_arrays(ours, due, self._request, commands.max_array_size()):
                    submitting = self._submit(array, layout, runs, is_open=False)
                    said += [text for event in submitting for text in event.said]
            elif looks >= _LOOKS_BEFORE_GONE:
                for task in ours:
                    self._end_without_job(task.spec, layout)
        reasons -= _USUAL | self._warned
        self._warned |= reasons
        return said + [
            f"Jobs wait because of {reason} (`man squeue`): if that cannot pass, scancel ends them."
            for reason in sorted(reasons)
        ]

    def _end_without_job(self, spec: RunSpec, layout: Layout) -> None:
        """Give a queued run that no job will take its end, unless it is running."""
        ticket = layout.queue.find(spec.run_id)
        number = self._ledger.last_attempt(spec.run_id)
        if ticket and number < ticket.number:
            if attempt := Attempt.begin(spec, self._ledger, ticket.number):
                reason = "its job left the queue before the run started: cancelled or broken."
                reason += f" See {layout.folder / ticket.submission}."
                attempt.end(End(outcome=Outcome.PREEMPTED, reason=reason), self._ledger)
        elif (state := attempt_state(self._ledger, spec.run_id, number)) is not Open.ABANDONED:
            if state is Open.HELD:
                return
        elif recover_attempt(self._ledger, spec.run_id, number) is None:
            return
        layout.queue.remove(spec.run_id)
