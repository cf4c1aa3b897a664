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
        launch = launch_of(self._launcher)
        sys.exit(run_sweep(points, plain(self._config), launch))


def launch_of(launcher: Any) -> Any:
    """A launcher's way to make runs.

    Raises:
        ValueError: if it is one of Hydra's own, which know jobs, not runs.
    """
    if hasattr(launcher, "launch_runs"):
        return launcher.launch_runs
    msg = (
        "hydra/launcher must be local or slurm with this sweeper; got "
        f"{type(launcher).__name__}. With Hydra's own launchers use hydra/sweeper=basic."
    )
    raise ValueError(msg)
