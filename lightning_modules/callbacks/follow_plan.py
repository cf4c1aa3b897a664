"""Keeps Lightning, the model's layers and the random generators in step with the batch plan."""

from typing import Any

from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Callback
from torch import Tensor

from lightning_modules.data.batch_counts import count_examples
from lightning_modules.data.randomness import STEP_DRAWS, VALIDATION, seed_draws
from lightning_modules.layers.batch_position import StepPosition
from lightning_modules.layers.keyed_dropout import check_draws, generator_state
from lightning_modules.modules.steps import ends_step, val_loader
from lightning_modules.rank_plan import RankPlan


class FollowPlan(Callback):
    """Sets each epoch's accumulation, each micro-batch's position, and the seeds of its draws.

    Keyed dropout and ghost BatchNorm read the position. Our classifier draws only in such layers:
    an epoch's first forward pass is checked for other draws. A user's module may draw as it likes,
    so the generators are seeded before each epoch, optimizer step and batch of validation. For
    training steps the loader seeds them, before anything is done with a batch.
    """

    def __init__(self, plan: RankPlan, position: StepPosition) -> None:
        self._plan, self._position = plan, position
        self._batch_idx = 0
        self._generator: Tensor | None = None  # state of torch's before the forward pass

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Accumulate as the first batch needs, also in an epoch that is resumed midway."""
        epoch = trainer.current_epoch
        split = self._plan.split(epoch, self._plan.first_step(epoch))
        trainer.accumulate_grad_batches = split.accumulation_steps

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Accumulate as the epoch's batch needs; seed by (seed, epoch)."""
        self.on_train_start(trainer, pl_module)
        if self._plan.has_own_module:
            seed_draws(self._plan.seed, trainer.current_epoch)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Move on to this micro-batch, before its forward pass."""
        self._batch_idx, epoch = batch_idx, trainer.current_epoch
        step = self._plan.steps_in(epoch, batch_idx)
        split = self._plan.split(epoch, step)
        trainer.accumulate_grad_batches = split.accumulation_steps  # it may grow within the epoch
        self._position.move(
            epoch=epoch,
            step=step,
            step_start=self._plan.examples_in(epoch, step),
            first_example=self._plan.first_example(epoch, batch_idx),
            examples=count_examples(batch, self._plan.num_examples(epoch, batch_idx)),
        )
        is_checked = batch_idx == 0 and not self._plan.has_own_module
        self._generator = generator_state(pl_module.device) if is_checked else None

    def on_before_backward(
        self, trainer: Trainer, pl_module: LightningModule, loss: Tensor
    ) -> None:
        """Refuse a model that has drawn from torch's generator in its forward pass."""
        if self._generator is not None:
            check_draws(pl_module, self._generator, pl_module.device)

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Seed by (seed, step), the same on all ranks, once they have the step's gradient.

        Otherwise noise added to the gradient, or drawn by an optimizer, would make the ranks'
        weights differ.
        """
        if not self._plan.has_own_module or not pl_module.automatic_optimization:
            return
        if ends_step(trainer, self._batch_idx):
            step = self._plan.step(trainer.current_epoch, self._batch_idx)
            seed_draws(self._plan.seed, STEP_DRAWS, step)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Clear the position: validation examples have none in the epoch."""
        self._position.examples = 0

    def on_validation_batch_start(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Seed by (seed, loader, batch); the same after every epoch, and on every layout."""
        if not self._plan.has_own_module:
            return
        loader = val_loader(trainer, dataloader_idx)
        # Without a DataModule the module makes its loader itself.
        key = (
            (loader.numbers[batch_idx], 0)
            if hasattr(loader, "numbers")
            else (batch_idx, self._plan.rank)
        )
        seed_draws(self._plan.seed, VALIDATION, dataloader_idx, *key)
