"""Tickets of SLURM's jobs: a file for each run that was submitted and has not ended.

    results/slurm/queued/<run_id>-<n>.json   a ticket, written before its job; its number is a claim
    results/slurm/<submission>/              lease.json while it is being submitted, job.json after
                                             that, and submitit's files: sbatch text, logs;
                                             first_ends/, which may keep later runs from starting

A submission's name is the comment of its jobs, so that a job can be found even if the process that
submitted it was killed before it recorded the job's number.
"""

import json
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from sweeper.launch.queue.queue import Ticket
from sweeper.launch.slurm import commands
from sweeper.launch.slurm.commands import Queued
from sweeper.spec.outcomes import MAY_GO_ON
from sweeper.store.lease import claim, is_held, release
from sweeper.store.ledger import Ledger
from sweeper.store.publish import publish_json, read_as, read_mapping

COMMENT = "sweeper "


class Tickets:
    """The tickets of SLURM's jobs in a results folder."""

    def __init__(self, ledger: Ledger) -> None:
        self.folder = ledger.results / "slurm"
        self._queued = self.folder / "queued"

    def read_all(self) -> dict[str, Ticket]:
        """The latest ticket of each run that is in the queue."""
        found = {run_id: self.read(run_id, n) for run_id, n in self.latest_numbers().items()}
        return {run_id: ticket for run_id, ticket in found.items() if ticket}

    def latest_numbers(self) -> dict[str, int]:
        """The number of the latest ticket of each run that is in the queue."""
        return dict(sorted(self._list_numbers()))

    def find(self, run_id: str) -> Ticket | None:
        """The latest ticket of a run."""
        number = self.latest_numbers().get(run_id)
        return self.read(run_id, number) if number else None

    def claim(self, ticket: Ticket, *, instead_of: Ticket | None) -> bool:
        """Make a run's next ticket; False if another process was faster."""
        self._queued.mkdir(parents=True, exist_ok=True)
        listed = self._list_numbers() if instead_of else []
        before = [n for other, n in listed if other == ticket.run_id]
        path = self._path(ticket.run_id, max(before, default=0) + 1)
        try:
            with path.open("x") as file:  # only one process can
                file.write(json.dumps(asdict(ticket)))
        except FileExistsError:
            return False
        for n in before:
            self._path(ticket.run_id, n).unlink(missing_ok=True)
        return True

    def remove(self, run_id: str) -> None:
        """Remove the tickets of a run that has ended."""
        for path in self._queued.glob(f"{run_id}-*.json"):
            path.unlink(missing_ok=True)

    def open_submission(self, name: str) -> Path:
        """Make a submission's folder, and hold it until the job's number is recorded."""
        folder = self.folder / name
        claim(folder)
        return folder

    def discard_submission(self, name: str) -> None:
        """Remove the folder of a submission that was refused."""
        release(self.folder / name)
        shutil.rmtree(self.folder / name, ignore_errors=True)

    def record_job(self, name: str, job: str) -> None:
        """Record the number of a submission's array, and release its folder."""
        publish_json(self.folder / name / "job.json", {"job": job})
        release(self.folder / name)

    def read_job(self, name: str) -> str | None:
        """The number of a submission's array; None if it was not recorded."""
        return read_mapping(self.folder / name / "job.json").get("job")

    def list_jobs(self) -> set[str]:
        """The numbers of the arrays that were submitted, whether they have ended or not."""
        names = {path.parent.name for path in self.folder.glob("*/job.json")}
        return {job for name in names if (job := self.read_job(name))}

    def find_log(self, ticket: Ticket) -> Path:
        """The first output file of the ticket's job; its submission's folder if there is none."""
        folder, job = self.folder / ticket.submission, self.read_job(ticket.submission)
        index = "*" if ticket.index is None else ticket.index
        found = [*sorted(folder.glob(f"{job}_{index}_*.out")), *folder.glob(f"{job}_0_log.out")]
        return found[0] if found else folder

    def query_jobs(self) -> "Jobs | None":
        """Which tickets have a job, of any user; None if SLURM does not respond."""
        users = {os.getuid()}
        for path in self._queued.glob("*.json"):
            with suppress(FileNotFoundError):  # its run has ended meanwhile
                users.add(path.stat().st_uid)
        queue = commands.query_queue(users)
        return None if queue is None else Jobs(queue, self)

    def is_being_submitted(self, name: str) -> bool:
        """Whether a live process is submitting, and has not yet recorded the job's number."""
        folder = self.folder / name
        return self.read_job(name) is None and folder.exists() and is_held(folder)

    def _list_numbers(self) -> list[tuple[str, int]]:
        if not self._queued.is_dir():
            return []
        names = os.listdir(self._queued)  # noqa: PTH208  names alone
        parts = (name.removesuffix(".json").partition("-") for name in names if name[0] != ".")
        return [(run_id, int(number)) for run_id, _, number in parts if number.isdecimal()]

    def _path(self, run_id: str, number: int) -> Path:
        return self._queued / f"{run_id}-{number:03d}.json"

    def read(self, run_id: str, number: int) -> Ticket | None:
        """A ticket; None if its run has ended meanwhile; ValueError if it cannot be parsed."""
        path = self._path(run_id, number)
        ticket = read_as(Ticket, path)
        if ticket or not os.path.lexists(path):
            return ticket
        msg = (
            f"{path} must be a ticket of this version of sweeper; it cannot be read. Remove it and "
            "repeat the command to submit its run again."
        )
        raise ValueError(msg)


class Jobs:
    """Which tickets have a job, according to a listing of the queue."""

    def __init__(self, queue: Sequence[Queued], tickets: Tickets) -> None:
        self._tickets = tickets
        self._by_number = {(row.job, index): row for row in queue for index in (row.index, None)}
        self._by_comment = {
            (row.comment.removeprefix(COMMENT), index): row
            for row in queue
            for index in (row.index, None)
            if row.comment.startswith(COMMENT)
        }
        self._read_job = cache(tickets.read_job)

    def find(self, ticket: Ticket) -> Queued | None:
        """The ticket's job; None if it is not in the queue."""
        number = self._read_job(ticket.submission)
        if number is not None:
            return self._by_number.get((number, ticket.index))
        return self._by_comment.get((ticket.submission, ticket.index))

    def has(self, ticket: Ticket) -> bool:
        """Whether the ticket has a job, or is being submitted right now."""
        return bool(self.find(ticket)) or self._tickets.is_being_submitted(ticket.submission)


def list_waiting_runs(ledger: Ledger, tickets: Tickets) -> list[dict[str, Any]]:
    """The runs that were submitted, have not ended and are not running, with their states in SLURM.

    Runs whose last attempt was abandoned are included if their job will make another.

    `state` is queued, gone (the job left the queue: repeating the command submits the run again),
    submitted (SLURM cannot be asked from here), or outdated (the ticket cannot be read, or is from
    another version of this code).
    """
    ended = ledger.ended()
    begun = {run_id: is_held(ledger.attempt_folder(run_id, n)) for run_id, n in ledger.active()}
    known = {run_id: n for run_id, n in tickets.latest_numbers().items() if not begun.get(run_id)}
    jobs = tickets.query_jobs() if known else None
    lines: list[dict[str, Any]] = []
    for run_id, number in known.items():
        attempt = ledger.last_attempt(run_id)
        line: dict[str, Any] = {"run_id": run_id, "job": None, "point": "", "epochs": 0}
        line["config"] = dict[str, Any]()
        try:
            if (ticket := tickets.read(run_id, number)) is None:
                continue
            attempt = max(attempt, ticket.number)
            index = "" if ticket.index is None else f"_{ticket.index}"
            line["job"] = f"{tickets.read_job(ticket.submission)}{index}"
            line |= {"point": ticket.spec.point, "epochs": ticket.spec.epochs}
            line["config"] = dict(ticket.config)
            output = tickets.folder / ticket.submission
            state, why = "gone", f"its job left the queue (output in {output}); repeat the sweep"
            if jobs is None:
                state, why = "submitted", "squeue does not respond here"
            elif job := jobs.find(ticket):
                state, why = "queued", job.reason
            elif jobs.has(ticket):
                state, why = "queued", "is just being submitted"
        except ValueError as error:
            state, why = "outdated", str(error)
        row = ended.get(run_id)
        has_ended = row and row.attempt >= attempt and row.outcome not in MAY_GO_ON
        if state == "gone" and has_ended:  # another process trained it instead of its job
            continue
        if state == "queued" or run_id not in begun:  # otherwise it is abandoned
            lines.append({**line, "attempt": attempt, "state": state, "why": why})
    return lines
