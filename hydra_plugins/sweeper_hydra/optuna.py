"""`hydra/sweeper=optuna`: a study at every compared point of the words after `-m`."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from hydra_plugins.sweeper_hydra.base import RunSweeper


class OptunaSweeper(RunSweeper):
    """Tunes at every compared point; conf/hydra/sweeper/optuna.yaml says what the settings are.

    Args:
        params: words of a preset by key, which words of the command line replace.
        settings: all others.
    """

    def __init__(self, params: Mapping[str, Any] | None = None, **settings: Any) -> None:
        super().__init__(params)
        self._settings = settings

    def sweep(self, arguments: list[str]) -> None:
        """Run the studies and leave with the exit code."""
        from sweeper.commands.overrides import expand, plain, resolved, with_preset_axes
        from sweeper.commands.tune import run_tuning
        from sweeper.commands.tuning_overrides import axes  # Hydra imports plugins at every start
        from sweeper.tuning.design import Design

        loader = self._context.config_loader
        words = with_preset_axes(self._params, arguments)
        found = axes([word for word in words if not word.startswith("n_trials=")], loader)
        ours = resolved(self._settings)
        design = Design.of(ours, found.space, found.averaged)

        def configs_of(words: Sequence[str]) -> Any:
            return expand(loader, [*found.fixed, *found.averaged, *words])

        settings = {**plain(self._config), **ours}
        points = list(found.points())
        sys.exit(run_tuning(points, design, settings, configs_of, self._launch()))
