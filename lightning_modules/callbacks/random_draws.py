"""Random draws in a model: keyed by the examples, and refused if made in any other way."""

from typing import Any

from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Callback
from torch import Tensor

from lightning_modules.callbacks.steps import took_step
from lightning_modules.data.batch_counts import count_examples
from lightning_modules.data.randomness import OF_STEP, VALIDATION, seed_draws
from lightning_modules.layers.keyed_dropout import StrayDraws
from lightning_modules.layers.position import StepPosition
from lightning_modules.rank_plan import RankPlan


class Position(Callback):
    """Tells keyed dropout and ghost BatchNorm which examples a micro-batch has."""

    def __init__(self, plan: RankPlan, position: StepPosition) -> None:
        self._plan, self._position = plan, position

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Move on to this micro-batch, before its forward pass."""
        epoch = trainer.current_epoch
        split = self._plan.split(epoch)
        step = batch_idx // split.accumulation_steps
        self._position.move(
            epoch=epoch,
            step=step,
            step_start=step * split.global_batch,
            first_example=self._plan.first_example(epoch, batch_idx),
            examples=count_examples(batch, split.micro_batch),
        )

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Clear the position: validation examples have none in the epoch."""
        self._position.leave()


class KeyedDraws(Callback):
    """Seeds the generators before each epoch, each optimizer step and each batch of validation.

    For a user's module, which may draw as it likes. For training steps the loader seeds them,
    before anything is done with a batch.
    """

    def __init__(self, plan: RankPlan) -> None:
        self._plan = plan
        self._batch_idx = 0

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Seed by (seed, epoch)."""
        seed_draws(self._plan.seed, trainer.current_epoch)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Remember which micro-batch this is."""
        self._batch_idx = batch_idx

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Seed by (seed, step), the same on all ranks, once they have the step's gradient.

        Otherwise noise added to the gradient, or drawn by an optimizer, would make the ranks'
        weights differ.
        """
        if pl_module.automatic_optimization and took_step(trainer, self._batch_idx):
            step = self._plan.step(trainer.current_epoch, self._batch_idx)
            seed_draws(self._plan.seed, OF_STEP, step)

    def on_validation_batch_start(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Seed by (seed, loader, batch, rank); the same after every epoch."""
        seed_draws(self._plan.seed, VALIDATION, dataloader_idx, batch_idx, self._plan.rank)


class NoStrayDraws(Callback):
    """Refuses a model that draws from torch's generator in an epoch's first forward pass."""

    def __init__(self) -> None:
        self._draws: StrayDraws | None = None

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Look at torch's generator before the forward pass."""
        self._draws = StrayDraws(pl_module.device) if batch_idx == 0 else None

    def on_before_backward(
        self, trainer: Trainer, pl_module: LightningModule, loss: Tensor
    ) -> None:
        """Compare torch's generator after the forward pass."""
        if self._draws is not None:
            self._draws.refuse(pl_module)
