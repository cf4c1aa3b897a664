"""Calls of SLURM's own programs, and their answers. Needs no accounting."""

import re
import shutil
import subprocess
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

_TIMEOUT_S = 60.0
_REQUEUE_TRIES, _BETWEEN_TRIES_S = 5, 2.0
_SMALLEST_MAX_ARRAY_SIZE = 1001  # SLURM's own default


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """An element of a job array in the queue, or a single job."""

    job: str
    index: int  # 0 for a single job
    state: str  # SLURM's short code: PD, R, CG, ...
    reason: str  # why it waits
    comment: str


def query_queue(users: Iterable[int]) -> list[Queued] | None:
    """The queued and running jobs of users, given by id; None if SLURM does not respond."""
    listed = f"--user={','.join(map(str, sorted(users)))}"
    output = run_program("squeue", "--noheader", "--array", listed, "--format=%F|%K|%t|%r|%k")
    if output is None:
        return None
    found: list[Queued] = []
    for line in output.splitlines():
        if line.count("|") >= 4:
            job, index, state, reason, comment = line.strip().split("|", 4)
            number = int(index) if index.isdigit() else 0
            found.append(Queued(job=job, index=number, state=state, reason=reason, comment=comment))
    return found


def run_program(
    program: str,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    succeeds: bool = True,
) -> str | None:
    """The output of a program of SLURM's, or None if it is not available.

    An environment of None means this process's own. With `succeeds`, output counts only if the
    program exits with 0.
    """
    try:
        done = subprocess.run(
            [program, *arguments],
            capture_output=True,
            text=True,
            check=succeeds,
            timeout=_TIMEOUT_S,
            env=environment,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


def config_value(name: str, config: str | None) -> str | None:
    """A value in the output of `scontrol show config`; None if it is not there."""
    found = re.search(rf"^{name}\s*= (.*)$", config or "", re.MULTILINE)
    return found[1].strip() if found else None


def max_array_size() -> int:
    """The most elements that an array may have [count]."""
    shown = config_value("MaxArraySize", run_program("scontrol", "show", "config"))
    return int(shown) if shown and shown.isdigit() else _SMALLEST_MAX_ARRAY_SIZE


def requeue_job(job: str) -> bool:
    """Put this process's own job back into the queue; False if that fails.

    scontrol runs inside the job, so SLURM may kill it before it reports success.
    """
    for _ in range(_REQUEUE_TRIES):
        try:
            done = subprocess.run(["scontrol", "requeue", job], check=False, timeout=_TIMEOUT_S)
        except FileNotFoundError:
            return False
        except subprocess.TimeoutExpired:
            continue
        if done.returncode <= 0:
            return True
        time.sleep(_BETWEEN_TRIES_S)
    return False


def cancel_waiting(jobs: Iterable[str]) -> bool:
    """Take jobs that have not started out of the queue; False if none is known, or SLURM is not."""
    numbers = sorted(jobs)
    if not numbers:
        return False
    return run_program("scancel", "--state=PENDING", *numbers) is not None


def drop_task_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without the job's task variables, which would contradict srun's options."""
    contradicting = ("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_TASKS_PER_NODE", "SLURM_NTASKS_PER_")
    return {k: v for k, v in environment.items() if not k.startswith(contradicting)}


def was_cancelled(log: Path) -> bool:
    """Whether a job was ended by scancel, according to SLURM's note in its log.

    Unless a person cancelled the job, the note ends in DUE TO PREEMPTION, DUE TO TIME LIMIT, ...
    The job's state would tell only once the job is over.
    """
    try:
        # private: SLURM "CANCELLED AT ... DUE TO ..." of slurmstepd
        notes = [n for n in log.read_text(errors="replace").splitlines() if " CANCELLED AT " in n]
    except OSError:
        return False
    return bool(notes) and " DUE TO " not in notes[-1]


def check_submit_host() -> None:
    """ValueError if SLURM's programs are not here, so that no job can be submitted."""
    missing = [name for name in ("sbatch", "squeue") if not shutil.which(name)]
    if missing:
        msg = (
            "hydra/launcher=slurm must be started on a host with SLURM's programs; "
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not on PATH. "
            "Go to a login node of the cluster, or use hydra/launcher=local."
        )
        raise ValueError(msg)
