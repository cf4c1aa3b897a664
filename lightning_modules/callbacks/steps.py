"""What callbacks ask about the current step, and a hook after the last step of an epoch."""

from collections.abc import Iterable

import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Callback
from torch import Tensor, nn

from lightning_modules.optimizers.run_strategy import RunStrategy
from sweeper.upstream.torchs import foreach_norm


class AfterSteps(Callback):
    """A callback with a hook after the last step of an epoch, before its validation."""

    _epoch = -1

    def on_steps_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called once all steps of the epoch are taken."""

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Lightning validates before it calls `on_train_epoch_end`."""
        self.on_train_epoch_end(trainer, pl_module)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Call the hook, unless validation has done so."""
        if self._epoch != trainer.current_epoch:
            self._epoch = trainer.current_epoch
            self.on_steps_end(trainer, pl_module)


def ends_step(trainer: Trainer, batch_idx: int) -> bool:
    """Whether an optimizer step ended with this micro-batch; Lightning's rule."""
    is_whole = (batch_idx + 1) % trainer.accumulate_grad_batches == 0
    return is_whole or trainer.is_last_batch


def current_lrs(trainer: Trainer) -> list[float]:
    """The learning rates of the last step of every group, or before any step of the next."""
    if isinstance(trainer.strategy, RunStrategy) and trainer.strategy.used_lrs:
        return trainer.strategy.used_lrs
    groups = [group for optimizer in trainer.optimizers for group in optimizer.param_groups]
    return [float(group["lr"]) for group in groups]


def gradient_norm(parameters: Iterable[nn.Parameter]) -> Tensor:
    """The norm of the whole gradient of these parameters, on their device.

    The same as `torch.nn.utils.get_total_norm`, which takes twice as long for small models.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    if not gradients:
        return torch.zeros(())
    return torch.linalg.vector_norm(torch.stack(foreach_norm(gradients)))


def loss_scale(trainer: Trainer) -> float:
    """The current loss scale: 1 except with 16-mixed."""
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    return scaler.get_scale() if scaler is not None else 1.0
