"""`hydra/launcher=slurm`: runs on a cluster, as job arrays."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

if TYPE_CHECKING:
    from sweeper.launch.events import Event, Tasks
    from sweeper.ledger import Ledger


class SlurmLauncher(Launcher):
    """Submits runs as job arrays and follows them.

    Args:
        detach: return when all is submitted.
        poll_s: look at the queue this often [seconds].
        settings: the rest of conf/hydra/launcher/slurm.yaml: see `slurm_submit.Request` and
            `slurm_job.JobPolicy`.
    """

    def __init__(self, detach: bool, poll_s: float, **settings: Any) -> None:  # noqa: FBT001
        self._detach, self._poll_s, self._settings = detach, poll_s, settings

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
        msg = (
            "hydra/launcher=slurm needs hydra/sweeper=grid or optuna. Use "
            "hydra/launcher=submitit_slurm with Hydra's own sweepers."
        )
        raise NotImplementedError(msg)

    def launch_runs(self, tasks: "Tasks", ledger: "Ledger") -> "Iterator[Event]":
        """Make runs on the cluster; see `sweeper.launch.slurm.run_on_slurm`."""
        from sweeper.launch.slurm import run_on_slurm  # Hydra imports plugins at every start
        from sweeper.launch.slurm_submit import request_of

        settings = {name: _plain(value) for name, value in self._settings.items()}
        request = request_of(settings)
        return run_on_slurm(tasks, ledger, request, detach=self._detach, poll_s=self._poll_s)


def _plain(value: Any) -> Any:
    return OmegaConf.to_container(value) if OmegaConf.is_config(value) else value
