"""Submits runs as job arrays: grouped by needs, split to sizes that the cluster accepts."""

import contextlib
import io
import math
import secrets
import shlex
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from sweeper.launch.slurm.job import JobPolicy, run_element
from sweeper.launch.slurm.submissions import COMMENT, layout_name
from sweeper.planning.plan import Task
from sweeper.spec.run_spec import RunSpec
from sweeper.spec.sentences import read_model
from sweeper.spec.values import Count, Index, Positive, Rule, Switch, Text

_LONGEST_LIST = 3
#: Options of sbatch that would start other jobs than the runs', or hide the job's number.
_NOT_PARAMETERS = ("array", "parsable", "quiet", "test_only", "wait")


_Name = Annotated[str | int, Rule("a name")]  # an account may be a number


#: How much earlier than asked SLURM may send a signal (`man sbatch`, --signal) [seconds].
EARLY_S = 60


class JobRequest(JobPolicy):
    """What to request from SLURM; conf/hydra/launcher/slurm.yaml explains each key."""

    detach: Switch
    poll_s: Positive
    partition: _Name | None
    account: _Name | None
    qos: _Name | None
    constraint: _Name | None
    time_min: Count
    memory_gib: Positive | None
    gpus_per_node: Index | Literal["auto"]
    cpus_per_rank: Count | Literal["auto"]
    setup: Annotated[list[str], Rule("a list of shell lines")]
    python: Text | None
    parameters: Annotated[dict[str, Any], Rule("options of sbatch by name")]
    throttle: Count | None
    runs_per_job: Count


def read_request(settings: Mapping[str, Any]) -> JobRequest:
    """The request made of slurm.yaml's keys; ValueError if a key is unknown or a value wrong."""
    if unknown := sorted(set(settings) - set(JobRequest.model_fields)):
        msg = (
            f"hydra.launcher has no key {unknown[0]}. Its keys: "
            f"{', '.join(sorted(JobRequest.model_fields))}."
            " Other options of sbatch go under hydra.launcher.parameters."
        )
        raise ValueError(msg)
    request = read_model(JobRequest, settings, "hydra.launcher.")
    grace_s, warning_s, limit_s = request.grace_s, request.warning_s, request.time_min * 60
    if not grace_s < warning_s < limit_s - EARLY_S:
        msg = (
            "hydra.launcher.grace_s must be below warning_s, and that more than "
            f"{EARLY_S} s below the time limit, as SLURM may warn that much earlier; got "
            f"{grace_s=}, {warning_s=}, time_min={request.time_min} ({limit_s} s). "
            "Give the job more time or shorten these."
        )
        raise ValueError(msg)
    names = {name.replace("-", "_") for name in request.parameters}
    if known := [name for name in _NOT_PARAMETERS if name in names]:
        msg = (
            f"hydra.launcher.parameters must not contain {', '.join(_NOT_PARAMETERS)}, as each run "
            f"needs a job that the command knows; got {', '.join(known)}. Remove these options."
        )
        raise ValueError(msg)
    if request.pulling_jobs and request.runs_per_job > 1:
        msg = (
            "hydra.launcher.runs_per_job must be 1 with pulling_jobs, whose jobs take runs until "
            f"none is left; got runs_per_job={request.runs_per_job}, pulling_jobs="
            f"{request.pulling_jobs}. Leave one of them out."
        )
        raise ValueError(msg)
    return request


@dataclass(frozen=True, slots=True, kw_only=True)
class Array:
    """Jobs that take these runs, or others of their layout; `runs` is the most that each takes."""

    name: str
    layout: str
    tasks: Sequence[Task]
    jobs: int
    runs: int | None


class Refused(Exception):
    """SLURM refused a submission; the text says why and what to do."""


def check_path(results: Path) -> Path:
    """The results folder as an absolute path; ValueError if sbatch would change that path."""
    path = results.resolve()
    if not {"%", "\\"} & {*str(path)}:
        return path
    msg = (
        "results must be a path without % and \\ with hydra/launcher=slurm, as sbatch changes them "
        f"in the names of the jobs' output files; got {path}. Choose another with "
        "results=FOLDER."
    )
    raise ValueError(msg)


def group_by_layout(tasks: Iterable[Task]) -> dict[str, list[Task]]:
    """Tasks whose jobs need the same resources, by the name of their layout."""
    groups: dict[str, list[Task]] = {}
    for task in tasks:
        groups.setdefault(layout_name(task.spec.config), []).append(task)
    return groups


def jobs_for(runs: int, request: JobRequest) -> int:
    """The jobs that so many runs of a layout need [count]."""
    if not request.pulling_jobs:
        return math.ceil(runs / request.runs_per_job)
    return min(request.pulling_jobs, math.ceil(runs / request.runs_at_a_time))


def make_arrays(
    tasks: Sequence[Task], jobs: int, request: JobRequest, largest: int
) -> Iterator[Array]:
    """Arrays of at most `largest` jobs, together so many, for runs of one layout."""
    most = None if request.pulling_jobs else request.runs_per_job
    for first in range(0, jobs, largest):
        part = tasks[first * most : (first + largest) * most] if most else tasks
        yield Array(
            name=secrets.token_hex(6),
            layout=layout_name(tasks[0].spec.config),
            tasks=part or tasks,
            jobs=min(largest, jobs - first),
            runs=most,
        )


def submit(array: Array, request: JobRequest, *, results: Path, folder: Path) -> str:
    """Submit a job array, whose runs already have tickets; return its number.

    `results` is shared with the nodes; `folder` is the submission's own, for submitit's files.
    Raises Refused if SLURM does not accept it.
    """
    from submitit import AutoExecutor  # 0.3 s
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    # exec: the signals that SLURM sends to the job's shell must reach Python
    python = f"exec {request.python or shlex.quote(sys.executable)}"
    executor = AutoExecutor(folder=folder, cluster="slurm", slurm_python=python)
    executor.update_parameters(**sbatch_options(array, request))
    element = str(results), array.layout, array.runs, request
    arguments = ([argument] * array.jobs for argument in element)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")  # submitit's, without sacct; errors are raised anyway
            jobs = executor.map_array(run_element, *arguments)
    except (FailedJobError, FailedSubmissionError) as error:
        raise Refused(explain_refusal(str(error))) from error
    return jobs[0].job_id.partition("_")[0]


def sbatch_options(array: Array, request: JobRequest) -> dict[str, Any]:
    """The parameters that are passed to submitit for an array."""
    spec = array.tasks[0].spec
    at_once, count = request.runs_at_a_time, array.jobs
    cpus = spec.config.threads if request.cpus_per_rank == "auto" else request.cpus_per_rank
    gpus = request.gpus_per_node
    if gpus == "auto":
        on_gpus = spec.config.accelerator == "gpu"
        gpus = on_gpus * spec.config.devices * math.ceil(at_once / request.runs_per_gpu)
    asked = {
        "name": job_name([task.spec for task in array.tasks]),
        "slurm_comment": COMMENT + array.name,
        "timeout_min": request.time_min,
        "nodes": spec.config.num_nodes,
        "tasks_per_node": spec.config.devices,
        "cpus_per_task": int(cpus) * at_once,
        "gpus_per_node": int(gpus) or None,
        "mem_gb": request.memory_gib,
        "slurm_partition": request.partition,
        "slurm_account": request.account,
        "slurm_qos": request.qos,
        "slurm_constraint": request.constraint,
        # until Python handles the warning, which would end a process that does not
        "slurm_setup": ["trap '' USR1", *request.setup],
        "slurm_use_srun": False,
        "slurm_array_parallelism": min(request.throttle or count, count),
        "stderr_to_stdout": True,
        "slurm_additional_parameters": {
            "signal": f"B:USR1@{request.warning_s}",
            "requeue": True,
            **{name.replace("_", "-"): value for name, value in request.parameters.items()},
        },
    }
    return {name: value for name, value in asked.items() if value is not None}


def job_name(specs: Sequence[RunSpec]) -> str:
    """The batches and warmups of runs as a word: `batch=3840,30720_warmup=0-20`."""

    def join_values(values: Iterable[float]) -> str:
        distinct = sorted(set(values))
        if len(distinct) > _LONGEST_LIST:
            return f"{distinct[0]:g}-{distinct[-1]:g}".replace("e+0", "e")
        return ",".join(f"{value:.12g}" for value in distinct)

    batches = join_values(spec.config.batch for spec in specs)
    return f"batch={batches}_warmup={join_values(spec.config.warmup for spec in specs)}"


def explain_refusal(error: str) -> str:
    """A refusal as SLURM's own message, followed by our advice."""
    said = [line.partition("error:")[2].strip() for line in error.splitlines() if "error:" in line]
    reason = ". ".join(dict.fromkeys(line.rstrip(".") for line in said)) or error.strip()
    return (
        f"SLURM must accept the jobs; sbatch says: {reason}. Request what the cluster has, under "
        "hydra.launcher (conf/hydra/launcher/slurm.yaml lists all keys; `sinfo --Node --long`), or "
        "repeat the command later if its queue is full or its controller is busy."
    )
