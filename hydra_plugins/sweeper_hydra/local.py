"""`hydra/launcher=local`: runs on this machine, from a warm fork server."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

if TYPE_CHECKING:
    from sweeper.launch.events import Event, Tasks
    from sweeper.ledger import Ledger


class LocalLauncher(Launcher):
    """Starts each run in fresh processes on this machine.

    Args:
        jobs: runs at a time, or auto: as many as cores or GPUs carry.
        runs_per_gpu: runs that share a GPU [count].
    """

    def __init__(self, jobs: int | str, runs_per_gpu: int) -> None:
        self._jobs, self._runs_per_gpu = jobs, runs_per_gpu

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Called by Hydra before anything is launched."""
        del task_function, config
        self._context = hydra_context

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Not for Hydra's own sweepers: they know jobs, not runs."""
        del job_overrides, initial_job_idx
        msg = "hydra/launcher=local needs hydra/sweeper=grid. Use hydra/launcher=basic instead."
        raise NotImplementedError(msg)

    def launch_runs(self, tasks: "Tasks", ledger: "Ledger") -> "Iterator[Event]":
        """Make runs here; see `sweeper.launch.local.run_here`."""
        from sweeper.launch.local import run_here  # Hydra imports plugins at every start
        from sweeper.launch.slots import this_machine

        machine = this_machine(jobs=self._jobs, runs_per_gpu=self._runs_per_gpu)
        return run_here(tasks, ledger, machine)
