"""Validation after each epoch's steps: each example counted once, over all ranks."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Callback

from lightning_modules.callbacks.epoch_means import EpochSums
from lightning_modules.callbacks.weight_average import WeightAverage
from lightning_modules.data.examples import examples_in
from sweeper.upstream.lightnings import validate_after_last_step


class Evaluation(Callback):
    """Validates at the end of each epoch, and averages the `sums` that validation steps return.

    Lightning's own loop validates; `AfterSteps` callbacks have prepared the module before it
    starts.

    Args:
        names: of the sums; each is a metric of the module.
        average: evaluated in place of the weights; None if no average is kept.

    Attributes:
        columns: means of the last epoch, by name with the prefix `val_`.
    """

    def __init__(self, names: Sequence[str], *, average: WeightAverage | None) -> None:
        self._names, self._average = names, average
        self._sums = EpochSums(names, torch.device("cpu"))
        self.columns: dict[str, float | None] = {}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Have Lightning validate after the last step, however many an epoch has."""
        validate_after_last_step(trainer)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start new sums, and put the average in place of the weights."""
        self._sums = EpochSums(self._names, pl_module.device)
        if self._average:
            self._average.swap(pl_module)

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Add the micro-batch's sums, if the module returns them."""
        is_own = getattr(trainer.val_dataloaders, "counts", True)
        if is_own and isinstance(outputs, Mapping) and "sums" in outputs:
            self._sums.add(outputs["sums"], examples_in(batch))

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put the weights back, and average the sums."""
        if self._average:
            self._average.swap(pl_module)
        self.columns = {f"val_{name}": mean for name, mean in self._sums.means().items()}
