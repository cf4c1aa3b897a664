"""The queue: a file for each run that was queued and has not ended for good.

    results/queue/queued/<two letters>/<run_id>.json   its ticket, in a folder by its id
    results/queue/<submission>/                        how the first runs of a command ended
    results/queue/stop.json                            replaced by each `sweeper stop`
    results/slurm/<layout>/                            the same for SLURM's jobs of each layout

A ticket's name is known from its run, so none has to be searched for. Nothing here needs links,
locks or clocks that agree.
"""

import errno
import os
import random
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sweeper.planning.plan import Task
from sweeper.spec.run_spec import RunSpec, read_run_spec
from sweeper.store.lease import is_held
from sweeper.store.ledger import Ledger
from sweeper.store.publish import publish_json, read_as, unique_suffix

#: So many runs are taken in the order in which they were queued; of more, any may be the next.
_WINDOW = 64
_LETTERS, _STOP = 2, "stop.json"  # 256 folders, of which a worker lists few at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """A run in the queue."""

    run_id: str
    config: Mapping[str, Any]
    number: int  # of the first attempt to make
    from_scratch: bool
    submission: str

    @property
    def spec(self) -> RunSpec:
        """The run, without calling what its config names, as anyone may have submitted it.

        ValueError if this version of the code reads it as another run.
        """
        try:
            spec = read_run_spec(self.config)
            why = f"its config is run {spec.run_id} here"
            if spec.run_id == self.run_id:
                return spec
        except ValueError as error:
            why = str(error).splitlines()[0]
        msg = (
            "a ticket must be of this version of sweeper; "
            f"run {self.run_id} was submitted by another version ({why}). Repeat the command with "
            "this version, or use the other version."
        )
        raise ValueError(msg)


class Queue:
    """The queued runs of a results folder, for any worker or for SLURM's jobs of a layout."""

    def __init__(self, ledger: Ledger, place: str = "queue") -> None:
        self.results, self.folder = ledger.results, ledger.results / place
        self._queued = self.folder / "queued"

    def add(self, tasks: Iterable[Task], submission: str) -> None:
        """Queue the runs that are not queued, as of this submission."""
        for task in tasks:
            ticket = Ticket(
                run_id=task.spec.run_id,
                config=task.spec.config.resolved,
                number=task.number,
                from_scratch=task.from_scratch,
                submission=submission,
            )
            path = self._path(ticket.run_id)
            while not self.has(ticket.run_id):
                path.parent.mkdir(parents=True, exist_ok=True)
                with suppress(FileNotFoundError):  # the folder was empty, and another removed it
                    publish_json(path, asdict(ticket))

    def has(self, run_id: str) -> bool:
        """Whether a run is queued."""
        return self._path(run_id).exists()

    def find(self, run_id: str) -> Ticket | None:
        """A run's ticket; None if it has ended meanwhile; ValueError if it cannot be read."""
        path = self._path(run_id)
        ticket = read_as(Ticket, path)
        if ticket or not os.path.lexists(path):
            return ticket
        msg = (
            f"{path} must be a ticket of this version of sweeper; it cannot be read. Remove it and "
            "repeat the command to submit its run again."
        )
        raise ValueError(msg)

    def remove(self, run_id: str) -> None:
        """Remove the ticket of a run that has ended for good."""
        path = self._path(run_id)
        path.unlink(missing_ok=True)
        with suppress(OSError):  # there are others in it
            path.parent.rmdir()

    def ask_to_stop(self) -> None:
        """Have the workers that are at work now end, once their runs are saved."""
        self.folder.mkdir(exist_ok=True)
        publish_json(self.folder / _STOP, unique_suffix())

    def stop_mark(self) -> str | None:
        """Changes with each request to stop."""
        return read_as(str, self.folder / _STOP)

    def list_runs(self) -> set[str]:
        """The ids of all queued runs."""
        return {path.stem for folder in self._folders() for path in _list(folder)}

    def walk(self) -> Iterator[str]:
        """The ids of the queued runs: few in their order, many from random places on.

        So workers do not try the same runs, and what one lists does not grow with their number.
        FileNotFoundError if the results folder is away.
        """
        (self.results / "attempts").stat()  # else it would look like an empty queue
        folders, window = self._folders(), list[tuple[int, str]]()
        random.shuffle(folders)
        while folders or window:
            while folders and len(window) < _WINDOW:
                for path in _list(folders.pop()):
                    with suppress(FileNotFoundError):  # its run has ended meanwhile
                        window.append((path.lstat().st_mtime_ns, path.stem))
            window.sort()
            first = random.randrange(len(window)) if len(window) > _WINDOW else 0
            yield from (run_id for _, run_id in (*window[first:], *window[:first]))
            window.clear()

    def _folders(self) -> list[Path]:
        if not self._queued.is_dir():
            return []
        names = os.listdir(self._queued)  # noqa: PTH208  names alone
        return [self._queued / name for name in names if len(name) == _LETTERS]

    def _path(self, run_id: str) -> Path:
        return self._queued / run_id[:_LETTERS] / f"{run_id}.json"


def list_queued(ledger: Ledger, queue: Queue, state: str, why: str) -> list[dict[str, Any]]:
    """The queued runs that are not running, with this state, for `sweeper status`.

    If there is no worker for them, those are left out whose last attempt was abandoned, or has its
    row. Outdated is what cannot be read, or is of another version.
    """
    lines, active = list[dict[str, Any]](), dict(ledger.active())
    ended = ledger.ended() if state == "gone" else {}
    for run_id in queue.list_runs():
        last = ledger.last_attempt(run_id)
        folder = ledger.attempt_folder(run_id, active.get(run_id, 0))
        if run_id in active and (state != "queued" or is_held(folder)):
            continue
        row = ended.get(run_id)
        if row and row.attempt >= last:
            continue
        line: dict[str, Any] = {"run_id": run_id, "point": "", "epochs": 0, "config": {}}
        line |= {"attempt": last, "state": state, "why": why}
        try:
            if (ticket := queue.find(run_id)) is None:
                continue
            spec = ticket.spec
            line |= {"point": spec.point, "epochs": spec.epochs, "config": dict(ticket.config)}
            line["attempt"] = max(last, ticket.number)
        except ValueError as error:
            line |= {"state": "outdated", "why": str(error)}
        lines.append(line)
    return lines


def _list(folder: Path) -> list[Path]:
    try:
        names = os.listdir(folder)  # noqa: PTH208  names alone
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ELOOP, errno.ENOTDIR):
            raise
        return []  # its last run has ended, or it is no folder
    return [folder / name for name in names if name.endswith(".json") and name[0] != "."]
