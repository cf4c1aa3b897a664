"""Optuna and multiprocessing: what they have no public call for."""

from multiprocessing import forkserver
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import optuna


def ensure_fork_server() -> None:
    """Start the fork server if it is not running, before the first process that it starts.

    `multiprocessing.forkserver.ensure_running` is undocumented; `Process.start` calls it.
    """
    forkserver.ensure_running()


def resume_trial(study: "optuna.Study", trial_id: int) -> "optuna.Trial":
    """A trial that an earlier command began, under its number.

    `optuna.Trial` is documented as made by Optuna alone; `Study.ask` makes it so.
    """
    import optuna

    return optuna.Trial(study, trial_id)
