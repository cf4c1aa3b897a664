"""`hydra/launcher=slurm`: runs on a cluster, as job arrays."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from hydra_plugins.sweeper_hydra.base import RunLauncher

if TYPE_CHECKING:
    from sweeper.planning.tasks import Event, Tasks
    from sweeper.store.ledger import Ledger


class SlurmLauncher(RunLauncher):
    """Submits runs as job arrays and follows them.

    Args:
        detach: return when all is submitted.
        poll_s: look at the queue this often [seconds].
        settings: the rest of conf/hydra/launcher/slurm.yaml: see `slurm_submit.Request` and
            `slurm_job.JobPolicy`.
    """

    _refusal = (
        "hydra/launcher=slurm needs hydra/sweeper=grid or optuna. Use "
        "hydra/launcher=submitit_slurm with Hydra's own sweepers."
    )

    def __init__(self, detach: bool, poll_s: float, **settings: Any) -> None:  # noqa: FBT001
        self._detach, self._poll_s, self._settings = detach, poll_s, settings

    def launch_runs(self, tasks: "Tasks", ledger: "Ledger") -> "Iterator[Event]":
        """Make runs on the cluster; see `sweeper.launch.slurm.launcher.run_on_slurm`."""
        from sweeper.commands.overrides import resolved  # Hydra imports plugins at every start
        from sweeper.launch.slurm.launcher import run_on_slurm
        from sweeper.launch.slurm.submit import request_of

        request = request_of(resolved(self._settings))
        return run_on_slurm(tasks, ledger, request, detach=self._detach, poll_s=self._poll_s)
