"""Questions of callbacks about the current micro-batch."""

from typing import Any

import torch
from pytorch_lightning import Trainer
from pytorch_lightning.utilities.data import extract_batch_size
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def took_step(trainer: Trainer, batch_idx: int) -> bool:
    """Whether an optimizer step ended with this micro-batch; Lightning's rule."""
    is_whole = (batch_idx + 1) % trainer.accumulate_grad_batches == 0
    return is_whole or trainer.is_last_batch


def examples_in(batch: Any) -> int:
    """Examples of a micro-batch: the length of its tensors [examples]."""
    return extract_batch_size(batch)


def current_lr(trainer: Trainer) -> float:
    """The learning rate that the optimizer uses, read back from it."""
    return trainer.optimizers[0].param_groups[0]["lr"]


def ddp_of(trainer: Trainer) -> DistributedDataParallel:
    """The wrapper of the trained module."""
    wrapped = trainer.strategy.model
    assert isinstance(wrapped, DistributedDataParallel)
    return wrapped


def gradient_norm(module: nn.Module) -> float:
    """The norm of the whole gradient; waits for the device."""
    gradients = [p.grad for p in module.parameters() if p.grad is not None]
    return float(torch.nn.utils.get_total_norm(gradients))


def loss_scale(trainer: Trainer) -> float:
    """The current loss scale: 1 except with 16-mixed."""
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    return scaler.get_scale() if scaler is not None else 1.0
