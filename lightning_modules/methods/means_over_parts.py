"""Means over the parts of a batch, for the optimizers that use them."""

import math
from collections.abc import Sequence

import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Callback
from torch import Tensor
from torch.optim import Optimizer

from lightning_modules.gradients.micro_gradients import MicroGradients
from lightning_modules.modules.steps import gradient_norm
from lightning_modules.optimizers.on_parts import OnParts


class PartMeans(Callback):
    """Gives an `OnParts` optimizer the means of its statistic, before each step.

    A part is a micro-batch. The means are the same on all ranks.
    """

    _micro: MicroGradients

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Watch every micro-batch's gradient from now on."""
        (optimizer,) = trainer.optimizers
        assert isinstance(optimizer, OnParts), "it has a gradient_span"
        self._micro = MicroGradients(optimizer.statistic, degree=optimizer.degree)
        self._micro.watch(pl_module, trainer)

    @torch.no_grad()
    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer
    ) -> None:
        """Use the means over the whole batch."""
        is_scaled = getattr(trainer.precision_plugin, "scaler", None) is not None
        if is_scaled and not math.isfinite(gradient_norm(pl_module.parameters()).item()):
            return  # the loss scaler skips this step
        weights = [p for p in pl_module.parameters() if p.grad is not None]
        self.use_means(optimizer, weights, self._micro.means(weights))

    def use_means(
        self, optimizer: Optimizer, weights: Sequence[Tensor], means: Sequence[Tensor]
    ) -> None:
        """Hand the means to the optimizer."""
        assert isinstance(optimizer, OnParts), "it has a gradient_span"
        optimizer.means = dict(zip(weights, means, strict=True))
