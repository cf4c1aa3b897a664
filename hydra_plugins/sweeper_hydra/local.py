"""`hydra/launcher=local`: runs on this machine, from a warm fork server."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

if TYPE_CHECKING:
    from sweeper.domain.run_spec import RunSpec
    from sweeper.launch.local import Event
    from sweeper.ledger import Ledger


class LocalLauncher(Launcher):
    """Starts each run in fresh processes on this machine.

    Args:
        jobs: runs at a time, or auto: as many as the cores carry.
    """

    def __init__(self, jobs: int | str) -> None:
        self._jobs = jobs

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

    def launch_runs(self, specs: "Sequence[RunSpec]", ledger: "Ledger") -> "Iterator[Event]":
        """Run specs here; see `sweeper.launch.local.run_here`."""
        from sweeper.launch.local import run_here  # Hydra imports plugins always

        jobs: Any = self._jobs
        return run_here(specs, ledger, jobs=jobs)
