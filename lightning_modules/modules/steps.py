"""What callbacks ask about the current step, and hooks before and after an evaluation."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Callback
from torch import Tensor, nn

from lightning_modules.optimizers.run_strategy import RunStrategy
from lightning_modules.process.shards import whole
from sweeper.upstream.lightnings import is_validated


class AroundEvaluation(Callback):
    """A callback with a hook before each evaluation or the end of an epoch, and one after."""

    _ended_at = _evaluated_at = (-1, -1)

    def on_steps_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called after the last step before an evaluation, or of an epoch."""

    def on_evaluated(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called after an evaluation."""

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Lightning validates before it calls `on_train_epoch_end`."""
        self.end_steps(trainer, pl_module)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Call both hooks, unless they were called within the epoch."""
        self.end_steps(trainer, pl_module)
        if is_validated(trainer):
            self.end_evaluation(trainer, pl_module)

    def end_steps(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Call the first hook, unless it was called after this micro-batch."""
        if self._ended_at != (at := _position(trainer)):
            self._ended_at = at
            self.on_steps_end(trainer, pl_module)

    def end_evaluation(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Call the second hook, unless it was called after this micro-batch."""
        if self._evaluated_at != (at := _position(trainer)):
            self._evaluated_at = at
            self.on_evaluated(trainer, pl_module)


def _position(trainer: Trainer) -> tuple[int, int]:
    return trainer.current_epoch, trainer.fit_loop.batch_idx


def end_evaluation(trainer: Trainer, pl_module: LightningModule) -> None:
    """Call the hooks of all callbacks for an evaluation within an epoch.

    The first are called here if the module has no validation.
    """
    callbacks: list[Callback] = trainer.callbacks  # pyright: ignore[reportAttributeAccessIssue]
    around = [callback for callback in callbacks if isinstance(callback, AroundEvaluation)]
    for callback in around:
        callback.end_steps(trainer, pl_module)
    for callback in around:
        callback.end_evaluation(trainer, pl_module)


def is_in_epoch(trainer: Trainer) -> bool:
    """Whether micro-batches of the epoch are to come after this one."""
    return not (trainer.is_last_batch or trainer.should_stop)


def ends_step(trainer: Trainer, batch_idx: int) -> bool:
    """Whether an optimizer step ended with this micro-batch; Lightning's rule."""
    is_whole = (batch_idx + 1) % trainer.accumulate_grad_batches == 0
    return is_whole or trainer.is_last_batch


def list_loaders(loaders: Any) -> list[Any]:
    """Loaders that are given by name, in a list or singly."""
    if isinstance(loaders, Mapping):
        return list(loaders.values())
    return list(loaders) if isinstance(loaders, list | tuple) else [loaders]


def val_loader(trainer: Trainer, dataloader_idx: int) -> Any:
    """A loader of the validation."""
    return list_loaders(trainer.val_dataloaders)[dataloader_idx]


def current_lrs(trainer: Trainer) -> list[float]:
    """The learning rates of the last step of every group, or before any step of the next."""
    if isinstance(trainer.strategy, RunStrategy) and trainer.strategy.used_lrs:
        return trainer.strategy.used_lrs
    groups = [group for optimizer in trainer.optimizers for group in optimizer.param_groups]
    return [float(group["lr"]) for group in groups]


def gradient_norm(parameters: Iterable[nn.Parameter]) -> Tensor:
    """The norm of the whole gradient of these parameters, on their device."""
    return whole(torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None]))
