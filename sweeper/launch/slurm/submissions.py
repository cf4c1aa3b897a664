"""What was submitted to SLURM: the queue of each layout, and the jobs that take runs from it.

    results/slurm/<layout>/queued/         a ticket for each run that has not ended for good
    results/slurm/<layout>/<submission>/   lease.json while it is being submitted, job.json after
                                           that, and submitit's files: sbatch text, logs;
                                           first_ends/, which may keep later runs from starting

A submission's name is the comment of its jobs, so that they are found even if the process that
submitted them was killed before it recorded their number.
"""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sweeper.launch.queue.queue import Queue, list_queued
from sweeper.launch.slurm import commands
from sweeper.launch.slurm.commands import Queued
from sweeper.spec.config import RunConfig
from sweeper.store.lease import claim, is_held, release
from sweeper.store.ledger import Ledger
from sweeper.store.publish import publish_json, read_mapping

COMMENT, _JOB = "sweeper ", "job.json"


class Layout:
    """The runs of a layout, and their jobs; `name` says what a job needs."""

    def __init__(self, ledger: Ledger, name: str) -> None:
        self.name, self.queue = name, Queue(ledger, f"slurm/{name}")
        self.folder = self.queue.folder

    def open_submission(self, name: str) -> Path:
        """Make a submission's folder, and hold it until the jobs' number is recorded."""
        self.folder.mkdir(parents=True, exist_ok=True)
        claim(self.folder / name)
        return self.folder / name

    def discard_submission(self, name: str) -> None:
        """Remove the folder of a submission that was refused."""
        release(self.folder / name)
        shutil.rmtree(self.folder / name, ignore_errors=True)

    def record_job(self, name: str, job: str) -> None:
        """Record the number of a submission's array, and release its folder."""
        publish_json(self.folder / name / _JOB, {"job": job})
        release(self.folder / name)

    def list_jobs(self) -> set[str]:
        """The numbers of the arrays that were submitted, whether they have ended or not."""
        numbers = (read_mapping(path).get("job") for path in self.folder.glob(f"*/{_JOB}"))
        return {str(number) for number in numbers if number}

    def alive(self, listed: Sequence[Queued]) -> list[Queued]:
        """Its jobs that are queued or running, among those that SLURM has listed."""
        jobs, names = self.list_jobs(), {path.name for path in self._submissions()}
        return [
            row for row in listed if row.job in jobs or row.comment.removeprefix(COMMENT) in names
        ]

    @property
    def is_being_submitted(self) -> bool:
        """Whether a live process is submitting, and has not yet recorded the jobs' number."""
        return any(not (p / _JOB).exists() and is_held(p) for p in self._submissions())

    def _submissions(self) -> list[Path]:
        paths = self.folder.iterdir() if self.folder.is_dir() else ()
        return [path for path in paths if path.is_dir() and path.name != "queued"]


def layout_name(config: RunConfig) -> str:
    """What a job for this run needs, as the name of a folder."""
    accelerator = f"{config.accelerator}-{config.threads}threads"
    return f"{config.num_nodes}x{config.devices}-{accelerator}"


def list_layouts(ledger: Ledger) -> list[Layout]:
    """The layouts for which runs were submitted."""
    found = sorted((ledger.results / "slurm").glob("*/queued"))
    return [Layout(ledger, path.parent.name) for path in found]


def list_jobs(layouts: Sequence[Layout]) -> list[Queued] | None:
    """The queued and running jobs of all who submitted runs; None if SLURM does not respond."""
    paths = [layout.folder for layout in layouts]
    return commands.query_queue({os.getuid(), *(p.stat().st_uid for p in paths if p.exists())})


def list_waiting_runs(ledger: Ledger) -> list[dict[str, Any]]:
    """The runs that were submitted, have not ended and are not running, with their states in SLURM.

    `state` is queued, gone (no job is left: repeating the command submits the run again), submitted
    (SLURM cannot be asked from here), or outdated (`list_queued`).
    """
    layouts = [layout for layout in list_layouts(ledger) if layout.queue.list_runs()]
    jobs = list_jobs(layouts) if layouts else None
    lines: list[dict[str, Any]] = []
    for layout in layouts:
        state, why = "submitted", "squeue does not respond here"
        if jobs is not None:
            alive = layout.alive(jobs)
            waiting = [job.reason for job in alive if job.state == "PD"]
            state, why = "queued", next(iter(waiting), "waits for a job of its layout")
            if not alive and not layout.is_being_submitted:
                state = "gone"
                why = f"no job is left for it (output in {layout.folder}); repeat the sweep"
        lines += list_queued(ledger, layout.queue, state, why)
    return lines
