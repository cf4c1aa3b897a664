"""`hydra/sweeper=grid`: every combination of the words after `-m`."""

import sys

from hydra_plugins.sweeper_hydra.base import RunSweeper


class GridSweeper(RunSweeper):
    """Expands, checks and runs a grid of points."""

    def sweep(self, arguments: list[str]) -> None:
        """Run the grid and leave with its exit code."""
        from sweeper.commands.overrides import (  # Hydra imports plugins at every start
            expand,
            plain,
            with_preset_axes,
        )
        from sweeper.commands.run import run_sweep

        words = with_preset_axes(self._params, arguments)
        points = expand(self._context.config_loader, words)
        sys.exit(run_sweep(points, plain(self._config), self._launch()))
