"""Our sweepers, which decide which runs to start, and our launchers, which decide where.

Hydra looks for its plugins here and imports them at every start, so what they call is imported
only when it is called.
"""

import sys
from abc import abstractmethod
from collections.abc import Generator, Mapping, Sequence
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, ClassVar

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from sweeper.upstream import hydras

if TYPE_CHECKING:
    from sweeper.planning.plan import Event, Tasks
    from sweeper.store.ledger import Ledger


class OwnFolder(hydras.OwnFolderSource):
    """Found here by Hydra, as sources of configs are plugins too."""


class OwnFolderFirst(SearchPathPlugin):
    """Looks for options in a user's config folder before ours."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Called by Hydra when it starts."""
        if folder := hydras.take_first():
            search_path.prepend("own", f"own://{folder}")


class RunLauncher(Launcher):
    """Where runs execute; its settings are in its file in conf/hydra/launcher."""

    _name: ClassVar[str]
    _for_hydras_sweepers: ClassVar[str]  # Hydra's launcher of jobs in the same place
    _settings_model: ClassVar[str]

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
            self.launch((), 0)

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Refuse the sweepers that call it."""
        del job_overrides, initial_job_idx
        msg = (
            f"hydra/launcher={self._name} needs hydra/sweeper=grid, optuna or sequential. Use "
            f"hydra/launcher={self._for_hydras_sweepers} with Hydra's own sweepers."
        )
        raise ValueError(msg)

    def check(self) -> Any:
        """The settings; ValueError if a setting is wrong. Called before any run starts."""
        from sweeper.spec.sentences import read_model

        return read_model(resolve_name(self._settings_model), self._settings, "hydra.launcher.")

    @abstractmethod
    def launch_runs(self, tasks: "Tasks", ledger: "Ledger") -> "Generator[Event]":
        """Execute runs and yield events."""


class LocalLauncher(RunLauncher):
    """Starts each run in fresh processes on this machine, or under torchrun on all its machines."""

    _name, _for_hydras_sweepers = "local", "basic"
    _settings_model = "sweeper.launch.local.slots.LocalSettings"

    def launch_runs(self, tasks: "Tasks", ledger: "Ledger") -> "Generator[Event]":
        """Execute runs here; see `sweeper.launch.local.launcher.run_here`."""
        from sweeper.launch.local.launcher import run_here
        from sweeper.launch.local.slots import inspect_machine
        from sweeper.launch.torchrun.group import torchrun_group
        from sweeper.launch.torchrun.launcher import run_with_torchrun

        settings = self.check()
        if group := torchrun_group():
            return run_with_torchrun(tasks, ledger, group)
        machine = inspect_machine(jobs=settings.jobs, runs_per_gpu=settings.runs_per_gpu)
        return run_here(tasks, ledger, machine, leave_occupied=True)


class SlurmLauncher(RunLauncher):
    """Submits runs as job arrays and follows them."""

    _name, _for_hydras_sweepers = "slurm", "submitit_slurm"

    def check(self) -> Any:
        """The settings; ValueError if a setting is wrong."""
        from sweeper.commands.overrides import to_plain_values
        from sweeper.launch.slurm.submit import read_request

        return read_request(to_plain_values(self._settings))

    def launch_runs(self, tasks: "Tasks", ledger: "Ledger") -> "Generator[Event]":
        """Execute runs on the cluster; see `sweeper.launch.slurm.launcher.run_on_slurm`."""
        from sweeper.launch.slurm.launcher import run_on_slurm

        return run_on_slurm(tasks, ledger, self.check())


class QueueLauncher(RunLauncher):
    """Queues runs for workers on any machine, and follows them."""

    _name, _for_hydras_sweepers = "queue", "basic"
    _settings_model = "sweeper.launch.queue.launcher.QueueSettings"

    def launch_runs(self, tasks: "Tasks", ledger: "Ledger") -> "Generator[Event]":
        """Queue runs; see `sweeper.launch.queue.launcher.run_in_queue`."""
        from sweeper.launch.queue.launcher import run_in_queue

        return run_in_queue(tasks, ledger, detach=self.check().detach)


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
        self._loader = hydra_context.config_loader
        self._launcher = hydras.instantiate_launcher(hydra_context, task_function, config)

    def sweep(self, arguments: list[str]) -> None:
        """Start the runs that these overrides select, and exit with their code."""
        from sweeper.commands.overrides import merge_preset, to_plain_values

        options = to_plain_values(self._settings)
        words = [*arguments, *options.pop("words", ())]  # `together=` and `where=` are no keys
        sys.exit(self._run(merge_preset(self._params, words), options, self._launch()))

    @abstractmethod
    def _run(self, overrides: list[str], options: Mapping[str, Any], launch: Any) -> int:
        """Start the runs; the command's exit code."""

    def _launch(self) -> Any:
        """The launcher's `launch_runs`; ValueError for Hydra's launchers, which only know jobs."""
        if isinstance(self._launcher, RunLauncher):
            self._launcher.check()
            return self._launcher.launch_runs
        kind = type(self._launcher)
        msg = (
            "hydra/launcher must be local, queue or slurm with this sweeper; got "
            f"{kind.__module__}.{kind.__name__}. With Hydra's own launchers use "
            "hydra/sweeper=basic."
        )
        raise ValueError(msg)


class GridSweeper(RunSweeper):
    """Starts a run at every combination of the overrides."""

    def _run(self, overrides: list[str], options: Mapping[str, Any], launch: Any) -> int:
        from sweeper.commands.overrides import expand
        from sweeper.commands.sweep import run_sweep

        del options  # a grid has none of its own
        return run_sweep(expand(self._loader, overrides), launch)


class OptunaSweeper(RunSweeper):
    """Tunes at every compared point; conf/hydra/sweeper/optuna.yaml explains the settings."""

    def _run(self, overrides: list[str], options: Mapping[str, Any], launch: Any) -> int:
        from sweeper.commands.tune import run_tuning

        return run_tuning(overrides, self._loader, options, launch)


class SequentialSweeper(RunSweeper):
    """Adds seeds until a question is decided; settings: conf/hydra/sweeper/sequential.yaml."""

    def _run(self, overrides: list[str], options: Mapping[str, Any], launch: Any) -> int:
        from sweeper.commands.overrides import expand
        from sweeper.commands.sequential import run_sequential

        return run_sequential(expand(self._loader, overrides), options, launch)
