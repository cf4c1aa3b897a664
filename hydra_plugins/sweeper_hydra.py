"""Our sweepers, which decide which runs to start, and our launchers, which decide where.

Hydra looks for its plugins here and imports them at every start, so what they call is imported
only when it is called.
"""

import sys
from abc import abstractmethod
from collections.abc import Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from sweeper.upstream.hydras import instantiate_launcher

if TYPE_CHECKING:
    from sweeper.launch.local.slots import LocalSettings
    from sweeper.launch.slurm.submit import Request
    from sweeper.planning.plan import Event, Tasks
    from sweeper.store.ledger import Ledger


class RunLauncher(Launcher):
    """Where runs execute; its settings are in its file in conf/hydra/launcher."""

    _refusal: ClassVar[str]

    def __init__(self, **settings: Any) -> None:
        self._settings = settings

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Called by Hydra before anything is launched; the arguments are not needed later.

        ValueError for Hydra's own sweepers, which submit jobs and know nothing of runs.
        """
        del hydra_context, task_function
        if not config.hydra.sweeper["_target_"].startswith(__name__):
            raise ValueError(self._refusal)

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Never called: `setup` refuses the sweepers that would call it."""
        del job_overrides, initial_job_idx
        raise ValueError(self._refusal)

    @abstractmethod
    def check(self) -> None:
        """ValueError if a setting is wrong; called before any run starts."""

    @abstractmethod
    def launch_runs(self, tasks: "Tasks", ledger: "Ledger") -> "Generator[Event]":
        """Execute runs and yield events."""


class LocalLauncher(RunLauncher):
    """Starts each run in fresh processes on this machine, or under torchrun on all its machines."""

    _refusal = (
        "hydra/launcher=local needs hydra/sweeper=grid, optuna or sequential. Use "
        "hydra/launcher=basic with Hydra's own sweepers."
    )

    def check(self) -> None:
        """ValueError if a setting is wrong."""
        self._checked()

    def _checked(self) -> "LocalSettings":
        from sweeper.launch.local.slots import LocalSettings
        from sweeper.spec.sentences import read_model

        return read_model(LocalSettings, self._settings, "hydra.launcher.")

    def launch_runs(self, tasks: "Tasks", ledger: "Ledger") -> "Generator[Event]":
        """Execute runs here; see `sweeper.launch.local.launcher.run_here`."""
        from sweeper.launch.local.launcher import run_here
        from sweeper.launch.local.slots import inspect_machine
        from sweeper.launch.torchrun.group import torchrun_group
        from sweeper.launch.torchrun.launcher import run_with_torchrun

        settings = self._checked()
        if group := torchrun_group():
            return run_with_torchrun(tasks, ledger, group)
        machine = inspect_machine(jobs=settings.jobs, runs_per_gpu=settings.runs_per_gpu)
        return run_here(tasks, ledger, machine)


class SlurmLauncher(RunLauncher):
    """Submits runs as job arrays and follows them."""

    _refusal = (
        "hydra/launcher=slurm needs hydra/sweeper=grid, optuna or sequential. Use "
        "hydra/launcher=submitit_slurm with Hydra's own sweepers."
    )

    def check(self) -> None:
        """ValueError if a setting is wrong."""
        self._request()

    def _request(self) -> "Request":
        from sweeper.commands.overrides import to_plain_values
        from sweeper.launch.slurm.submit import read_request

        return read_request(to_plain_values(self._settings))

    def launch_runs(self, tasks: "Tasks", ledger: "Ledger") -> "Generator[Event]":
        """Execute runs on the cluster; see `sweeper.launch.slurm.launcher.run_on_slurm`."""
        from sweeper.launch.slurm.launcher import run_on_slurm

        return run_on_slurm(tasks, ledger, self._request())


class RunSweeper(Sweeper):
    """Decides which runs to start.

    `params` are a preset's overrides by key; the command line takes precedence over them.
    """

    def __init__(self, params: Mapping[str, Any] | None = None, **settings: Any) -> None:
        self._params, self._settings = dict(params or {}), settings

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Called by Hydra before `sweep`."""
        self._context, self._config = hydra_context, config
        self._launcher = instantiate_launcher(hydra_context, task_function, config)

    def _launch(self) -> Any:
        """The launcher's `launch_runs`; ValueError for Hydra's launchers, which only know jobs."""
        if isinstance(self._launcher, RunLauncher):
            self._launcher.check()
            return self._launcher.launch_runs
        kind = type(self._launcher)
        msg = (
            "hydra/launcher must be local or slurm with this sweeper; got "
            f"{kind.__module__}.{kind.__name__}. With Hydra's own launchers use "
            "hydra/sweeper=basic."
        )
        raise ValueError(msg)


class GridSweeper(RunSweeper):
    """Starts a run at every combination of the overrides."""

    def sweep(self, arguments: list[str]) -> None:
        """Run the grid and exit with its code."""
        from sweeper.commands.overrides import command_settings, expand, merge_preset
        from sweeper.commands.sweep import run_sweep

        points = expand(self._context.config_loader, merge_preset(self._params, arguments))
        sys.exit(run_sweep(points, command_settings(self._config), self._launch()))


class OptunaSweeper(RunSweeper):
    """Tunes at every compared point; conf/hydra/sweeper/optuna.yaml explains the settings."""

    def sweep(self, arguments: list[str]) -> None:
        """Run the studies and exit with their code."""
        from sweeper.commands.overrides import command_settings, merge_preset, to_plain_values
        from sweeper.commands.tune import run_tuning

        overrides = merge_preset(self._params, arguments)
        options = {**command_settings(self._config), **to_plain_values(self._settings)}
        loader = self._context.config_loader
        sys.exit(run_tuning(overrides, loader, options, self._launch()))


class SequentialSweeper(RunSweeper):
    """Adds seeds until a question is decided; settings: conf/hydra/sweeper/sequential.yaml."""

    def sweep(self, arguments: list[str]) -> None:
        """Answer the question and exit with the code of its runs."""
        from sweeper.commands.overrides import (
            command_settings,
            expand,
            merge_preset,
            to_plain_values,
        )
        from sweeper.commands.sequential import run_sequential

        overrides = merge_preset(self._params, arguments)
        points = expand(
            self._context.config_loader, [o for o in overrides if not o.startswith("question=")]
        )
        options = {**command_settings(self._config), **to_plain_values(self._settings)}
        sys.exit(run_sequential(points, options, self._launch()))
