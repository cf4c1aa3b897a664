"""SLURM: whether jobs can be submitted from here, and what this job was given."""

import os
import shutil
from collections.abc import Iterator, Mapping

from sweeper.commands.checks.check import Check, good, warning
from sweeper.launch.slurm.commands import config_value, run_program

_DEFAULT_KILL_WAIT_S = 30
_EXIT_S = 7  # of KillWait, for srun to end and the rows


def cluster_checks(*, devices: int) -> Iterator[Check]:
    """Check SLURM, from a login node or from inside a job."""
    if "SLURM_JOB_ID" in os.environ:
        yield from job_checks(os.environ, devices=devices)
    missing = [name for name in ("sbatch", "squeue", "srun", "scontrol") if not shutil.which(name)]
    if len(missing) == 4:
        yield good("SLURM", "is not installed here: use hydra/launcher=local")
        return
    if missing:
        yield warning(
            "SLURM",
            f"{', '.join(missing)} not on PATH",
            "Without sbatch and squeue nothing can be submitted; without srun runs are limited to "
            "one node; without scontrol a job cannot requeue itself: repeat the command instead.",
        )
    config = run_program("scontrol", "show", "config")
    if config is None:
        remedy = "Nothing can be submitted now; see `scontrol ping`."
        yield warning("SLURM", "the controller does not respond", remedy)
        return
    yield good("SLURM", "its controller responds")
    yield from config_checks(config)


def job_checks(environment: Mapping[str, str], *, devices: int) -> Iterator[Check]:
    """SLURM's layout of this job, compared with the requested devices."""
    tasks = environment.get("SLURM_NTASKS")
    nodes = int(environment.get("SLURM_JOB_NUM_NODES", "1"))
    if tasks is not None and int(tasks) != devices * nodes:
        yield warning(
            "ranks",
            f"SLURM says ntasks={tasks} nodes={nodes}; devices={devices} requested",
            "sweeper starts its own ranks and is not affected; other Lightning programs would "
            "silently train with another batch here. Remove --ntasks from the job's header.",
        )
    else:
        yield good("ranks", f"ntasks={tasks or 'none'} nodes={nodes}; devices={devices} requested")
    cpus = environment.get("SLURM_CPUS_ON_NODE")
    if cpus and cpus.isdigit() and int(cpus) < devices:
        found = f"{cpus} on this node for devices={devices}"
        yield warning("CPUs", found, "Request at least one per rank.")


def config_checks(config: str) -> Iterator[Check]:
    """The settings of the cluster that matter to sweeps."""
    if config_value("JobRequeue", config) == "0":
        remedy = "sweeper's jobs request it; if they are still not requeued, repeat the command."
        yield warning("requeue", "is off by default (JobRequeue=0)", remedy)
    wait = (config_value("KillWait", config) or f"{_DEFAULT_KILL_WAIT_S} sec").split()[0]
    if wait.isdigit() and int(wait) < _DEFAULT_KILL_WAIT_S:
        remedy = f"Set hydra.launcher.term_grace_s to at most {int(wait) - _EXIT_S}."
        if int(wait) <= _EXIT_S:
            remedy = (
                f"hydra.launcher.term_grace_s must be {_EXIT_S} s below KillWait, which is too "
                "short for that: a run that is not saved in time resumes from its last checkpoint. "
                "Raise KillWait in slurm.conf, for instance to SLURM's default of 30."
            )
        yield warning("KillWait", f"{wait} s between SIGTERM and SIGKILL", remedy)
