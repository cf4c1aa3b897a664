"""`hydra/sweeper=optuna`: a study at every compared point of the words after `-m`."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from hydra_plugins.sweeper_hydra.grid import launch_of


class OptunaSweeper(Sweeper):
    """Tunes at every compared point; conf/hydra/sweeper/optuna.yaml says what the settings are.

    Args:
        params: words of a preset by key, which words of the command line replace.
        settings: all others.
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

    def sweep(self, arguments: list[str]) -> None:
        """Run the studies and leave with the exit code."""
        from sweeper.axes import axes  # Hydra imports plugins at every start
        from sweeper.compose import expand, plain, resolved, with_preset_axes
        from sweeper.tuning.design import Design
        from sweeper.tuning.sweep import run_tuning

        loader = self._context.config_loader
        words = with_preset_axes(self._params, arguments)
        found = axes([word for word in words if not word.startswith("n_trials=")], loader)
        ours = resolved(self._settings)
        design = Design.of(ours, found.space, found.averaged)
        launch = launch_of(self._launcher)

        def configs_of(words: Sequence[str]) -> Any:
            return expand(loader, [*found.fixed, *found.averaged, *words])

        settings = {**plain(self._config), **ours}
        points = list(found.points())
        sys.exit(run_tuning(points, design, settings, configs_of, launch))
