"""Showing each micro-batch's own gradient to an optimizer that compares them."""

from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Callback

from lightning_modules.callbacks.steps import loss_scale
from lightning_modules.optimizers.foreach import ForeachOptimizer


class WatchMicroGradients(Callback):
    """Does nothing with an optimizer that wants no more than the step's gradient."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Show every micro-batch's gradient from now on."""
        optimizer = trainer.optimizers[0]
        own = optimizer.micro_gradients if isinstance(optimizer, ForeachOptimizer) else None
        if own is not None:
            own.watch(
                pl_module.parameters(),
                accumulation_steps=lambda: trainer.accumulate_grad_batches,
                loss_scale=lambda: loss_scale(trainer),
            )
