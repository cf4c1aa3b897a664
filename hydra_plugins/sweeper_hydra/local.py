"""`hydra/launcher=local`: runs on this machine, from a warm fork server."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from hydra_plugins.sweeper_hydra.base import RunLauncher

if TYPE_CHECKING:
    from sweeper.planning.tasks import Event, Tasks
    from sweeper.store.ledger import Ledger


class LocalLauncher(RunLauncher):
    """Starts each run in fresh processes on this machine, or under torchrun on its machines.

    Args:
        jobs: runs at a time, or auto: as many as cores or GPUs carry.
        runs_per_gpu: runs that share a GPU [count].
    """

    _refusal = "hydra/launcher=local needs hydra/sweeper=grid. Use hydra/launcher=basic instead."

    def __init__(self, jobs: int | str, runs_per_gpu: int) -> None:
        self._jobs, self._runs_per_gpu = jobs, runs_per_gpu

    def launch_runs(self, tasks: "Tasks", ledger: "Ledger") -> "Iterator[Event]":
        """Make runs here; see `sweeper.launch.local.launcher.run_here`."""
        from sweeper.launch.local.launcher import run_here  # Hydra imports plugins at every start
        from sweeper.launch.local.slots import this_machine
        from sweeper.launch.torchrun.group import torchrun_group
        from sweeper.launch.torchrun.launcher import run_with_torchrun

        if group := torchrun_group():
            return run_with_torchrun(tasks, ledger, group)
        machine = this_machine(jobs=self._jobs, runs_per_gpu=self._runs_per_gpu)
        return run_here(tasks, ledger, machine)
