"""Runs of a sweep that other processes train: waited for, and taken over if those die."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from sweeper.planning.plan import Task
from sweeper.store.attempt import Attempt, End
from sweeper.store.ledger import Ledger
from sweeper.store.standing import Open, recover, standing


@dataclass(slots=True)
class Elsewhere:
    """The runs of one sweep that other processes have claimed."""

    ledger: Ledger
    _tasks: list[Task] = field(default_factory=list[Task])

    @property
    def has_runs(self) -> bool:
        """Whether any has not ended."""
        return bool(self._tasks)

    def add(self, task: Task) -> Sequence[Attempt]:
        """Follow another process's attempt, and return it if its folder can be read already."""
        self._tasks.append(task)
        attempt = Attempt.load(self.ledger, task.spec.run_id, task.number)
        return [attempt] if attempt else []

    def look(self) -> tuple[dict[str, End], Sequence[Task]]:
        """The ends of runs that other processes finished, and tasks for those they abandoned."""
        ended: dict[str, End] = {}
        abandoned: list[Task] = []
        for task in list(self._tasks):
            run_id = task.spec.run_id
            stands = standing(self.ledger, run_id, task.number)
            if stands is Open.HELD:
                continue
            self._tasks.remove(task)
            if isinstance(stands, End):
                ended[run_id] = stands
            else:
                recover(self.ledger, run_id, task.number)
                abandoned.append(Task(spec=task.spec, number=task.number + 1))
        return ended, abandoned
