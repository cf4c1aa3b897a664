"""`hydra/sweeper=grid` and `=optuna`: they know which runs to make.

What they call is imported when it is called: Hydra imports its plugins at every start.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from hydra_plugins.sweeper_hydra.launchers import RunLauncher


class RunSweeper(Sweeper):
    """Knows which runs to make.

    Args:
        params: overrides of a preset by key, which those of the command line replace.
        settings: all other settings of the sweeper.
    """

    def __init__(self, params: Mapping[str, Any] | None = None, **settings: Any) -> None:
        self._params, self._settings = dict(params or {}), settings

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Called by Hydra before `sweep`."""
        self._context, self._config = hydra_context, config
        self._launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def _launch(self) -> Any:
        """The launcher's way to make runs.

        Raises:
            ValueError: if it is one of Hydra's own, which know jobs, not runs.
        """
        if isinstance(self._launcher, RunLauncher):
            return self._launcher.launch_runs
        msg = (
            "hydra/launcher must be local or slurm with this sweeper; got "
            f"{type(self._launcher).__name__}. With Hydra's own launchers use hydra/sweeper=basic."
        )
        raise ValueError(msg)


class GridSweeper(RunSweeper):
    """Makes a run at every combination of the overrides."""

    def sweep(self, arguments: list[str]) -> None:
        """Run the grid and exit with its code."""
        from sweeper.commands.overrides import expand, plain, with_preset
        from sweeper.commands.sweep import run_sweep

        points = expand(self._context.config_loader, with_preset(self._params, arguments))
        sys.exit(run_sweep(points, plain(self._config), self._launch()))


class OptunaSweeper(RunSweeper):
    """Tunes at every compared point; conf/hydra/sweeper/optuna.yaml says what the settings are."""

    def sweep(self, arguments: list[str]) -> None:
        """Run the studies and exit with their code."""
        from sweeper.commands.overrides import expand, plain, resolved, with_preset
        from sweeper.commands.tune import run_tuning
        from sweeper.commands.tuning_overrides import sort_overrides
        from sweeper.tuning.study_settings import StudySettings

        loader = self._context.config_loader
        overrides = with_preset(self._params, arguments)
        found = sort_overrides([o for o in overrides if not o.startswith("n_trials=")], loader)
        ours = resolved(self._settings)
        settings = StudySettings.from_config(ours, found.space, found.averaged)

        def configs_of(chosen: Sequence[str]) -> Any:
            return expand(loader, [*found.fixed, *found.averaged, *chosen])

        options = {**plain(self._config), **ours}
        points = list(found.points())
        sys.exit(run_tuning(points, settings, options, configs_of, self._launch()))
