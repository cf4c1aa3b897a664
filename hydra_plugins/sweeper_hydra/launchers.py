"""`hydra/launcher=local` and `=slurm`: they know runs, not Hydra's jobs.

What they call is imported when it is called: Hydra imports its plugins at every start.
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

if TYPE_CHECKING:
    from sweeper.planning.tasks import Event, Tasks
    from sweeper.store.ledger import Ledger


class RunLauncher(Launcher):
    """A place to run."""

    _refusal: ClassVar[str]

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Called by Hydra before anything is launched; the tasks say all there is to know."""

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Not for Hydra's own sweepers: they know jobs, not runs."""
        del job_overrides, initial_job_idx
        raise NotImplementedError(self._refusal)

    @abstractmethod
    def launch_runs(self, tasks: "Tasks", ledger: "Ledger") -> "Iterator[Event]":
        """Make runs and report what happens."""


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
        from sweeper.launch.local.launcher import run_here
        from sweeper.launch.local.slots import this_machine
        from sweeper.launch.torchrun.group import torchrun_group
        from sweeper.launch.torchrun.launcher import run_with_torchrun

        if group := torchrun_group():
            return run_with_torchrun(tasks, ledger, group)
        machine = this_machine(jobs=self._jobs, runs_per_gpu=self._runs_per_gpu)
        return run_here(tasks, ledger, machine)


class SlurmLauncher(RunLauncher):
    """Submits runs as job arrays and follows them.

    Args:
        detach: return when all is submitted.
        poll_s: look at the queue this often [seconds].
        settings: the rest of conf/hydra/launcher/slurm.yaml: see `Request` in
            `sweeper.launch.slurm.submit` and `JobPolicy` in `sweeper.launch.slurm.job`.
    """

    _refusal = (
        "hydra/launcher=slurm needs hydra/sweeper=grid or optuna. Use "
        "hydra/launcher=submitit_slurm with Hydra's own sweepers."
    )

    def __init__(self, detach: bool, poll_s: float, **settings: Any) -> None:  # noqa: FBT001
        self._detach, self._poll_s, self._settings = detach, poll_s, settings

    def launch_runs(self, tasks: "Tasks", ledger: "Ledger") -> "Iterator[Event]":
        """Make runs on the cluster; see `sweeper.launch.slurm.launcher.run_on_slurm`."""
        from sweeper.commands.overrides import resolved
        from sweeper.launch.slurm.launcher import run_on_slurm
        from sweeper.launch.slurm.submit import request_of

        request = request_of(resolved(self._settings))
        return run_on_slurm(tasks, ledger, request, detach=self._detach, poll_s=self._poll_s)
