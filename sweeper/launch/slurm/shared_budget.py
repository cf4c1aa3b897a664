"""The budget of a command whose jobs start runs by themselves, kept in a shared folder."""

import os
from pathlib import Path

from sweeper.planning.budget import left_hours
from sweeper.planning.plan import Task
from sweeper.store.ledger import Ledger


class SharedAccount:
    """What the jobs of a command spend: an empty file for each attempt, with the hours in its name.

    `<run_id>-<attempt>-<device-hours>`: predicted hours while it runs, then the actual hours.
    """

    def __init__(self, folder: Path, hours: float) -> None:
        """Use this folder, and these hours as the budget of all jobs together [device-hours]."""
        self._folder, self._hours = folder, hours

    def fits(self, task: Task, ledger: Ledger) -> bool:
        """Whether an attempt may start; its hours are reserved before the others are added up."""
        hours = left_hours(task.spec, ledger, from_scratch=task.from_scratch) or 0.0
        self.note(task.spec.run_id, task.number, hours)
        names = os.listdir(self._folder)  # noqa: PTH208  names alone
        if sum(float(name.split("-", 2)[2]) for name in names) <= self._hours * (1 + 1e-9):
            return True
        self._remove(task.spec.run_id, task.number)
        return False

    def note(self, run_id: str, number: int, hours: float) -> None:
        """Record what an attempt takes, replacing any earlier record of it [device-hours]."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._remove(run_id, number)
        (self._folder / f"{run_id}-{number}-{hours:.9f}").touch()

    def _remove(self, run_id: str, number: int) -> None:
        for path in self._folder.glob(f"{run_id}-{number}-*"):
            path.unlink(missing_ok=True)
