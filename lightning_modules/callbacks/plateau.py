"""Schedulers that follow a metric, such as ReduceLROnPlateau: stepped before the run is saved."""

from typing import Any

from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Checkpoint

#: Of a scheduler that Lightning leaves alone: it steps those of an "epoch" or a "step".
_OURS: Any = "epoch, by the run"


class PlateauSchedulers(Checkpoint):
    """Steps the module's own schedulers that monitor what is logged, at the end of each epoch.

    Lightning does so after the checkpoint of the epoch, and not at all in an epoch that it resumed
    in the middle, so a resumed run would have other rates. A Checkpoint has its turn after the
    module, which may log at the end of its epoch.
    """

    def __init__(self) -> None:
        self._configs: list[Any] = []

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take the schedulers over."""
        for config in trainer.lr_scheduler_configs if pl_module.automatic_optimization else ():
            if config.reduce_on_plateau and config.interval == "epoch":
                config.interval = _OURS
                self._configs.append(config)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Step those whose turn it is.

        Raises:
            ValueError: if what a scheduler monitors is not logged.
        """
        for config in self._configs:
            if (trainer.current_epoch + 1) % config.frequency:
                continue
            value = trainer.callback_metrics.get(config.monitor)
            if value is not None:
                pl_module.lr_scheduler_step(config.scheduler, value)
            elif config.strict:
                names = ", ".join(sorted(trainer.callback_metrics)) or "nothing"
                msg = (
                    "what a scheduler monitors must be logged; got "
                    f"monitor={config.monitor} of {type(config.scheduler).__name__}, the module "
                    f"logged {names}. Monitor one of them, or log it."
                )
                raise ValueError(msg)
