"""Runs on all nodes of this process's job: srun starts the ranks, a process each."""

import os
import subprocess
import sys
from collections.abc import Mapping

from sweeper.launch.ranks import Running, WhyStopped
from sweeper.launch.slurm.commands import drop_task_variables
from sweeper.launch.slurm.rank import END_RANKS
from sweeper.spec.outcomes import Outcome
from sweeper.spec.run_spec import RunSpec
from sweeper.store.attempt import Attempt, End, end_from_record

_GRACE_S = 5.0
_LOG = "srun.txt"
_BY_SIGNAL = 128
_FROM_OUTSIDE = {9: "SIGKILL", 15: "SIGTERM"}


class SrunRanks:
    """The ranks of a run on all nodes of this job."""

    def check(self, spec: RunSpec) -> None:
        """Accept any layout, as it was submitted; `start` compares it with what the job has."""

    def start(self, attempt: Attempt, environment: Mapping[str, str]) -> Running:
        """Start srun; ValueError if the job has fewer nodes than the run."""
        del environment
        asked = attempt.spec.config.num_nodes
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
        self._folder = attempt.folder
        with (attempt.folder / _LOG).open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=drop_task_variables(os.environ),
            )

    @property
    def exitcode(self) -> int | None:
        return self._process.poll()

    def kill(self) -> None:
        """End the ranks through srun, and by a file in case SLURM is already ending the job."""
        if self.exitcode is None:
            (self._folder / END_RANKS).touch()
            self._process.terminate()

    def join(self, timeout: float | None = None) -> None:
        try:
            self._process.wait(_GRACE_S if timeout is None else timeout)
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
    printed = (attempt.folder / _LOG).read_text(errors="replace").strip().splitlines()
    # private: SLURM "oom-kill" or "oom_kill" in what srun prints
    if any("oom" in line.lower().replace("-", "") for line in printed):
        reason = "SLURM killed a rank that exceeded the job's memory"
        return End(outcome=Outcome.OUT_OF_MEMORY, reason=reason)
    if name := _FROM_OUTSIDE.get((code or 0) - _BY_SIGNAL):
        reason = f"a rank was killed by {name} from outside"
        return End(outcome=Outcome.PREEMPTED, reason=reason)
    last = f": {printed[-1]}" if printed else ""
    return End(outcome=Outcome.FAILED, reason=f"srun exited with {code or 0}{last}")
