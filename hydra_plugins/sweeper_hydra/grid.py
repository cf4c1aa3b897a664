"""`hydra/sweeper=grid`: every combination of the words after `-m`."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class GridSweeper(Sweeper):
    """Expands, checks and runs a grid of points.

    Args:
        params: axes of the grid by name, which words of the command line replace; for presets.
    """

    def __init__(self, params: Mapping[str, Any] | None = None) -> None:
        self._params = dict(params or {})

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Called by Hydra before `sweep`."""
        self._context, self._config = hydra_context, config
        self._launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> None:
        """Run the grid and leave with its exit code."""
        from sweeper.compose import expand  # Hydra imports plugins at every start
        from sweeper.sweep import run_sweep

        named = {word.split("=")[0].lstrip("+~") for word in arguments}
        axes = [f"{key}={value}" for key, value in self._params.items() if key not in named]
        points = expand(self._context.config_loader, [*axes, *arguments])
        launcher: Any = self._launcher
        sys.exit(run_sweep(points, Path(self._config.results), launcher.launch_runs))
