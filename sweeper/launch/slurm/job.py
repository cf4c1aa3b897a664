"""A job on its node: executes its runs, handles SLURM's signals, exits with a meaningful code.

The job requeues itself: after a signal its runs checkpoint after the current step and exit, and
the job goes back into the queue. It never imports torch.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from sweeper.launch.local.slots import Machine, inspect_machine
from sweeper.launch.queue.queue import Queue, Ticket
from sweeper.launch.queue.queue_worker import FirstSignal, Worker
from sweeper.launch.ranks import LocalRanks, Running, WhyStopped
from sweeper.launch.slurm import commands
from sweeper.launch.slurm.rank import END_RANKS
from sweeper.launch.slurm.submissions import Layout
from sweeper.planning.plan import Event, Task
from sweeper.spec.outcomes import CUT_SHORT, DONE, RUN_FAILED, Outcome
from sweeper.spec.run_spec import RunSpec
from sweeper.spec.values import Count, NotNegative, Settings
from sweeper.store.attempt import Attempt, End, attempt_state, end_from_record
from sweeper.store.ledger import Ledger
from sweeper.store.publish import read_mapping

_JOB_FILE, _TICK_S = "slurm.json", 0.2
_SRUN_LOG, _SRUN_GRACE_S = "srun.txt", 5.0
_NEAR_LIMIT, _CANCELLED = "its job's time limit was near", "cancelled with scancel"
_BY_SIGNAL, _FROM_OUTSIDE = 128, {9: "SIGKILL", 15: "SIGTERM"}
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


def run_element(results: str, layout: str, runs: int | None, policy: JobPolicy) -> None:
    """Be a job's worker on its first node; called by submitit. SystemExit with its exit code.

    It takes at most so many runs of the layout, or as many as there are.
    """
    signals = FirstSignal()
    for number in (signal.SIGUSR1, signal.SIGTERM):  # the ranks, signalled too, ignore SIGTERM
        signal.signal(number, signals.record)
    ledger = Ledger(Path(results))
    raise SystemExit(Job(ledger, Layout(ledger, layout).queue, policy, signals).run(runs))


class Job(Worker):
    """The worker of this process's job, an element of a submission's array."""

    def __init__(
        self, ledger: Ledger, queue: Queue, policy: JobPolicy, signals: FirstSignal
    ) -> None:
        say = partial(print, flush=True)  # into the job's log
        super().__init__(ledger, queue, signals, say)
        self._policy, self._ranks, self._most = policy, JobRanks(), None
        array = os.environ.get("SLURM_ARRAY_JOB_ID")
        #: The job's id for SLURM's programs; for an array element, the array's and its index.
        self._id = (
            f"{array}_{os.environ['SLURM_ARRAY_TASK_ID']}" if array else os.environ["SLURM_JOB_ID"]
        )

    def run(self, runs: int | None) -> int:
        """Train at most so many of the runs that no other job has; return the exit code."""
        policy, self._most = self._policy, runs
        machine = inspect_machine(jobs=policy.runs_at_a_time, runs_per_gpu=policy.runs_per_gpu)
        first = None
        for first in self._pull(machine):
            if first or self._is_to_stop():
                break
            self._wait(_TICK_S)
        if self._signals.number is not None:
            return self._exit_code()
        if first is None:
            return RUN_FAILED if self._has_refused or self._unfit else DONE
        name = first.spec.point.replace(" ", "_") + "_and_more" * (runs != 1)
        commands.run_program("scontrol", "update", f"JobId={self._id}", f"JobName={name}")
        if first.spec.config.num_nodes > 1:  # one after the other, each on all nodes
            machine = Machine(cores=1, jobs=1, device=machine.device)
        self._taken.clear()
        while not self._work_once(machine) and self._signals.number is None:
            pass
        return self._exit_code()

    def _pull(self, machine: Machine) -> Iterator[Task | None]:
        """The attempts to make that no other job makes, each determined when it is taken."""
        taken, left_before = 0, self._num_left
        for task in super()._pull(machine):
            yield task
            taken += task is not None
            if self._most and taken - (self._num_left - left_before) >= self._most:
                self._waiting.clear()  # it takes no more
                return

    def _stays_for(self, run_id: str) -> bool:
        return run_id in self._waiting

    def _held_before(self, folder: Path) -> bool:
        is_ours = read_mapping(folder / _JOB_FILE).get("job") == self._id  # SLURM requeued this job
        return is_ours or super()._held_before(folder)

    def _handle(self, event: Event) -> None:
        nodes = os.environ.get("SLURM_JOB_NODELIST", "")
        for attempt in event.began:
            about = json.dumps({"job": self._id, "nodes": nodes})
            (attempt.folder / _JOB_FILE).write_text(about)
        super()._handle(event)

    def _is_final(self, end: End, ours: Attempt | None) -> bool:
        return super()._is_final(end, ours) or _CANCELLED in end.reason

    @property
    def _grace_s(self) -> float:
        by_term = self._signals.number == signal.SIGTERM
        return self._policy.term_grace_s if by_term else self._policy.grace_s

    def _why_stopped(self) -> str:
        if self._is_told_to_stop or self._signals.number is None:
            return super()._why_stopped()
        if self._signals.number == signal.SIGUSR1:
            lacks = "" if shutil.which("scontrol") else _NO_SCONTROL
            return f"{_NEAR_LIMIT}{lacks}: stopped"
        log = Path(os.readlink("/proc/self/fd/1"))  # noqa: PTH115  may be no path
        why = _CANCELLED if commands.was_cancelled(log) else "SLURM took its nodes away"
        return f"{why}: stopped"

    def _exit_code(self) -> int:
        """The job's exit code; near the time limit it is first requeued if a run should resume."""
        ended = self._ledger.ended()
        outcomes = [ended[run_id].outcome for run_id in self._started if run_id in ended]
        if self._has_refused:
            return RUN_FAILED
        is_done = not any(map(self._queue.has, self._waiting))
        is_done &= len(outcomes) == len(self._started)
        if is_done and all(outcome.is_result for outcome in outcomes):
            return DONE
        if self._signals.number is None:
            return RUN_FAILED
        return self._requeue()

    def _requeue(self) -> int:
        if self._signals.number == signal.SIGUSR1:
            for run_id in self._started:
                if ticket := self._queue.find(run_id):
                    self._claim_task(ticket)  # a run that saves no step gets its row
            is_left = any(map(self._queue.has, self._started | self._waiting))
            if is_left and not commands.requeue_job(self._id):
                print(_NOT_REQUEUED, flush=True)  # noqa: T201  into the job's log
        return CUT_SHORT

    def _give_up(self, ticket: Ticket, number: int) -> End | None:
        """End a run as timed out if too many attempts in a row saved no step."""

        def is_near_limit(attempt: Attempt) -> bool:
            state = attempt_state(self._ledger, attempt.spec.run_id, attempt.number)
            return isinstance(state, End) and state.reason.startswith(_NEAR_LIMIT)

        most = self._policy.attempts_without_step
        if self._count_stalled(ticket, number, is_near_limit) < most:
            return super()._give_up(ticket, number)
        reason = f"no step was saved within the job's time limit in {most} attempts in a row"
        return End(outcome=Outcome.TIMED_OUT, reason=reason)


class JobRanks:
    """The ranks of a run on this node, or on all nodes of this job."""

    def check(self, spec: RunSpec) -> None:
        """Accept any layout, as it was submitted; `start` compares it with what the job has."""

    def start(self, attempt: Attempt, environment: Mapping[str, str]) -> Running:
        """Start them; ValueError if the job has fewer nodes than the run."""
        asked = attempt.spec.config.num_nodes
        if asked == 1:
            return LocalRanks().start(attempt, environment)
        given = int(os.environ.get("SLURM_JOB_NUM_NODES", "1"))
        if asked > given:
            msg = (
                f"num_nodes must be the number of nodes in the job; got num_nodes={asked}, SLURM "
                f"gave {given}. Remove nodes and ntasks from hydra.launcher.parameters: they "
                "follow from num_nodes."
            )
            raise ValueError(msg)
        return Running(attempt=attempt, processes=[_Srun(attempt)], failure=_explain_failure)


class _Srun:
    """The srun process, which ends when all ranks have ended or any has failed."""

    sentinel = None

    def __init__(self, attempt: Attempt) -> None:
        config = attempt.spec.config
        command = [
            "srun",
            f"--nodes={config.num_nodes}",
            f"--ntasks={attempt.spec.split.world_size}",
            f"--ntasks-per-node={config.devices}",
            f"--cpus-per-task={os.environ.get('SLURM_CPUS_PER_TASK', config.threads)}",
            "--distribution=block",
            "--kill-on-bad-exit=1",
            *(sys.executable, "-m", "sweeper.launch.slurm.rank", str(attempt.folder)),
        ]
        self._attempt = attempt
        with (attempt.folder / _SRUN_LOG).open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=commands.drop_task_variables(os.environ),
            )

    @property
    def exitcode(self) -> int | None:
        code, attempt = self._process.poll(), self._attempt
        if code is None and attempt.has_graceful_stop and attempt.was_stopped:
            return 0  # rank 0 has saved; srun takes 7 s more to end, and KillWait may be less
        return code

    def kill(self) -> None:
        """End the ranks through srun, and by a file in case SLURM is already ending the job."""
        if self.exitcode is None:
            (self._attempt.folder / END_RANKS).touch()
            self._process.terminate()

    def join(self, timeout: float | None = None) -> None:
        try:
            self._process.wait(_SRUN_GRACE_S if timeout is None else timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _explain_failure(run: Running, why_stopped: WhyStopped) -> End:
    """The end of a run, from the first record that a rank left, or from what srun printed."""
    (code,), attempt = run.codes, run.attempt
    if first := attempt.first_record(range(attempt.spec.split.world_size)):
        rank, record = first
        end = end_from_record(record, why_stopped)
        if end.outcome == Outcome.PREEMPTED:
            return end
        return End(outcome=end.outcome, reason=f"{end.reason} (rank {rank})")
    printed = (attempt.folder / _SRUN_LOG).read_text(errors="replace").strip().splitlines()
    # private: SLURM "oom-kill" or "oom_kill" in what srun prints
    if any("oom" in line.lower().replace("-", "") for line in printed):
        reason = "SLURM killed a rank that exceeded the job's memory"
        return End(outcome=Outcome.OUT_OF_MEMORY, reason=reason)
    number = (code or 0) - _BY_SIGNAL
    if number in _FROM_OUTSIDE or number >= signal.SIGRTMIN:  # srun's own while a job is cancelled
        name = _FROM_OUTSIDE.get(number, f"signal {number}")
        reason = f"a rank was killed by {name} from outside"
        return End(outcome=Outcome.PREEMPTED, reason=reason)
    last = f": {printed[-1]}" if printed else ""
    return End(outcome=Outcome.FAILED, reason=f"srun exited with {code or 0}{last}")
