"""`hydra/sweeper=grid`: every combination of the words after `-m`."""

import sys
from collections.abc import Mapping
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
        from sweeper.compose import (  # Hydra imports plugins at every start
            expand,
            plain,
            with_preset_axes,
        )
        from sweeper.sweep import run_sweep

        words = with_preset_axes(self._params, arguments)
        points = expand(self._context.config_loader, words)
        launcher: Any = self._launcher
        sys.exit(run_sweep(points, plain(self._config), launcher.launch_runs))
