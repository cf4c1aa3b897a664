"""Sharpness-aware minimisation: descend along the gradient at worse weights nearby."""

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Callback
from torch import Tensor

from lightning_modules.gradients.micro_gradients import loss_scale
from lightning_modules.layers.ghost_batchnorm import track_statistics
from lightning_modules.modules.extra_pass import call_training_step
from lightning_modules.optimizers.sharded_strategy import ShardedStrategy

_TINY = 1e-30


class SAM(Callback):
    """Takes each micro-batch's gradient at ``w + rho g / |g|``, ``g`` its gradient at ``w``.

    The norm is over all layers. The loss, the sums and the running statistics of the epoch are
    those of the pass at ``w``; this callback runs before those that read what a step returns. What
    a module logs comes from the other pass. Both passes make the same random draws.

    Args:
        rho: how far to climb, as a norm over all weights.

    Source:
        Foret et al. 2020, arXiv:2010.01412, without the second-order term.
    """

    def __init__(self, *, rho: float) -> None:
        self._rho = rho
        self._at_w: dict[str, Any] = {}
        self._weights: list[Tensor] = []
        self._kept: list[Tensor] = []

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Have shards stay gathered from one pass to the next: each rank climbs by itself."""
        if isinstance(trainer.strategy, ShardedStrategy):
            trainer.strategy.keep_gathered()

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Take the loss and the gradient at the weights, and climb."""
        is_sharded = isinstance(strategy := trainer.strategy, ShardedStrategy)
        with strategy.block_backward_sync() if is_sharded else nullcontext():
            self._climb(trainer, pl_module, batch, batch_idx)
        track_statistics(pl_module, is_on=False)

    def _climb(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        outputs = call_training_step(trainer, pl_module, batch, batch_idx)
        outputs = outputs if isinstance(outputs, Mapping) else {"loss": outputs}
        loss: Tensor = outputs["loss"]
        # divided, as Lightning hands on the loss of its own pass
        self._at_w = {"loss": loss.detach() / trainer.accumulate_grad_batches}
        if "sums" in outputs:
            self._at_w["sums"] = outputs["sums"]
        self._weights = [p for p in pl_module.parameters() if p.requires_grad]
        # Scaled like the backward pass of 16-mixed, where small gradients would otherwise underflow
        # to 0; only their direction matters.
        gradients = torch.autograd.grad(
            loss * loss_scale(trainer), self._weights, allow_unused=True, materialize_grads=True
        )
        with torch.no_grad():
            reach = self._rho / torch.nn.utils.get_total_norm(gradients).clamp_min(_TINY)
            self._kept = [weight.detach().clone() for weight in self._weights]
            for weight, gradient in zip(self._weights, gradients, strict=True):
                weight.add_(reach * gradient)

    @torch.no_grad()
    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Return to the weights from before the climb."""
        for weight, kept in zip(self._weights, self._kept, strict=True):
            weight.copy_(kept)
        self._kept = []
        if isinstance(trainer.strategy, ShardedStrategy):
            trainer.strategy.reshard()
        track_statistics(pl_module, is_on=True)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Give other callbacks the loss and sums of the pass at ``w``."""
        outputs.update(self._at_w)
