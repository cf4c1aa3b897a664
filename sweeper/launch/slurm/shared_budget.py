"""The budget of a command whose jobs start runs on their own: what each takes is in one folder."""

import os
from pathlib import Path

from sweeper.planning.budget import left_hours
from sweeper.planning.plan import Task
from sweeper.store.ledger import Ledger


class SharedAccount:
    """What the jobs of a command take: an empty file for each attempt, which its name says.

    `<run_id>-<attempt>-<device-hours>`: as predicted while it runs, then as it was.
    """

    def __init__(self, folder: Path, hours: float) -> None:
        """The folder, and what all may take [device-hours]."""
        self._folder, self._hours = folder, hours

    def fits(self, task: Task, ledger: Ledger) -> bool:
        """Whether an attempt may start; if so it is reckoned with, before others are looked at."""
        hours = left_hours(task.spec, ledger, from_scratch=task.from_scratch) or 0.0
        self.note(task.spec.run_id, task.number, hours)
        names = os.listdir(self._folder)  # noqa: PTH208  names alone
        if sum(float(name.split("-", 2)[2]) for name in names) <= self._hours * (1 + 1e-9):
            return True
        self._remove(task.spec.run_id, task.number)
        return False

    def note(self, run_id: str, number: int, hours: float) -> None:
        """Note what an attempt takes, in place of what was noted of it [device-hours]."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._remove(run_id, number)
        (self._folder / f"{run_id}-{number}-{hours:.9f}").touch()

    def _remove(self, run_id: str, number: int) -> None:
        for path in self._folder.glob(f"{run_id}-{number}-*"):
            path.unlink(missing_ok=True)
