"""What looks cost, and what the budget of a question covers."""

from collections.abc import Sequence
from dataclasses import dataclass

from sweeper.commands.bill import with_predictions
from sweeper.launch.local.slots import this_device
from sweeper.planning.budget import allowed_hours, check_budget, left_hours, spent_hours
from sweeper.planning.seconds import Speeds
from sweeper.spec.run_spec import RunSpec
from sweeper.store.ledger import Ledger


@dataclass(frozen=True, slots=True)
class Budget:
    """The budget of a question.

    Attributes:
        given: as typed.
        left: what remains of it after all attempts at its runs so far [device-hours].
    """

    given: object
    left: float
    _ledger: Ledger

    @classmethod
    def of(cls, runs: Sequence[RunSpec], ledger: Ledger) -> "Budget | None":
        """The budget of a command with these runs; None if it has none."""
        config = runs[0].config
        if (allowed := allowed_hours(config)) is None:
            return None
        return cls(config.budget, allowed - spent_hours(runs, ledger), ledger)

    def cost(self, runs: Sequence[RunSpec]) -> float:
        """Predicted cost of these runs [device-hours]."""
        return sum(hours or 0.0 for hours in _hours(runs, self._ledger).values())

    def words(self, cost: float) -> str:
        """A sentence that says that it does not cover the next look."""
        return (
            f"Stopped at budget={self.given}: the next look costs {cost:.3g} device-hours, "
            f"{max(0.0, self.left):.3g} are left."
        )


def check_known(runs: Sequence[RunSpec], ledger: Ledger) -> None:
    """ValueError if there is a budget and the time of one of these runs is not known."""
    if not runs or allowed_hours(runs[0].config) is None:
        return
    hours = _hours(runs, ledger)
    if None in hours.values():
        check_budget(runs[0].config, hours, runs, spent=0.0)


def _hours(runs: Sequence[RunSpec], ledger: Ledger) -> dict[str, float | None]:
    known = with_predictions(runs, Speeds(ledger, this_device(runs=1)))
    return {run.run_id: left_hours(run, ledger) for run in known}
