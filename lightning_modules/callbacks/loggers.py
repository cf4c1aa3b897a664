"""Mirrors the curves to a user's logger; a logger that fails never fails a run."""

import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pytorch_lightning.loggers import Logger

from sweeper.spec import config
from sweeper.spec.import_path import call
from sweeper.spec.run_spec import RunSpec


class Mirror:
    """The Lightning logger that the config's group `logger` names, or none; of the first rank."""

    def __init__(self, spec: RunSpec, folder: Path, *, rank: int) -> None:
        self._logger: Logger | None = None
        logger = spec.config.logger
        if logger.target is None or rank > 0:
            return
        filled = {"folder": str(folder), "run_id": spec.run_id, "point": spec.point, "tags": ""}
        filled["results"] = str(folder.parents[2])
        sweep = "/".join(folder.resolve().parents[2].parts[-2:])  # of the project, in most cases
        filled["sweep"] = os.environ.get("WANDB_RUN_GROUP") or sweep
        self._try(lambda: self._open(logger, filled, spec.config))

    def log_rows(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Log rows of the curve."""

        def log(logger: Logger, row: Mapping[str, Any]) -> None:
            values = {**row, **row.get("metrics", {}), "metrics": None}
            numbers = {name: float(value) for name, value in values.items() if value is not None}
            logger.log_metrics(numbers, step=row["step"])
            logger.save()

        for row in rows:
            if self._logger is not None:
                self._try(partial(log, self._logger, row))

    def close(self, outcome: str) -> None:
        """Finish the logger when the run has ended."""

        def finish(experiment: Any) -> None:
            if hasattr(experiment, "finish"):
                experiment.finish()

        if (logger := self._logger) is not None:
            self._try(lambda: logger.finalize("success" if outcome == "finished" else "failed"))
            # W&B writes its file in `finish`, or else in an exit handler, which workers skip.
            self._try(lambda: finish(getattr(logger, "experiment", None)))

    def _open(
        self, logger: config.Logger, filled: Mapping[str, str], of_run: config.RunConfig
    ) -> None:
        assert logger.target is not None
        tags = [tag.strip() for tag in (of_run.tags or "").split(",") if tag.strip()]
        settings = {
            key: value.replace(config.OUTPUT_FOLDER, "{folder}").format(**filled)
            if isinstance(value, str)
            else value
            for key, value in logger.settings.items()
        }
        if logger.settings.get("tags") == "{tags}":
            settings["tags"] = tags or None
        self._logger = call(logger.target, settings=settings)
        assert isinstance(self._logger, Logger)
        self._logger.log_hyperparams(of_run.resolved)

    def _try(self, action: Any) -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001  whatever a tool of the user's does
            self._logger = None
            print(f"logger: disabled after {error!r}; the run continues", file=sys.stderr)  # noqa: T201
