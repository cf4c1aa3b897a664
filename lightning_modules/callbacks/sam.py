"""Sharpness-aware minimisation: descend by the gradient at worse weights nearby."""

from typing import Any

import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Callback
from torch import Tensor

from lightning_modules.layers.ghost_batchnorm import track_statistics
from sweeper.spec import config


class SAM(Callback):
    """Takes each micro-batch's gradient at ``w + rho g / |g|``, ``g`` its gradient at ``w``.

    The norm is over all layers. The metrics and running statistics of the epoch are those of the
    pass at ``w``; its turn comes before that of callbacks that read what a step returns.

    Args:
        rho: how far to climb.

    Source:
        Foret et al. 2020, arXiv:2010.01412, without the second-order term.
    """

    def __init__(self, *, rho: float) -> None:
        self._rho = rho
        self._at_w: dict[str, Any] = {}
        self._weights: list[Tensor] = []
        self._kept: list[Tensor] = []

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Take the loss and the gradient at the weights, and climb."""
        with trainer.precision_plugin.train_step_context():
            outputs: Any = pl_module.training_step(batch, batch_idx)
        self._at_w = {key: value for key, value in outputs.items() if key != "loss"}
        self._weights = [p for p in pl_module.parameters() if p.requires_grad]
        gradients = torch.autograd.grad(outputs["loss"], self._weights)
        self._climb(gradients)
        track_statistics(pl_module, is_on=False)

    @torch.no_grad()
    def _climb(self, gradients: tuple[Tensor, ...]) -> None:
        reach = self._rho / torch.nn.utils.get_total_norm(gradients).clamp_min(_TINY)
        self._kept = [weight.detach().clone() for weight in self._weights]
        for weight, gradient in zip(self._weights, gradients, strict=True):
            weight.add_(reach * gradient)

    @torch.no_grad()
    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Come down again."""
        for weight, kept in zip(self._weights, self._kept, strict=True):
            weight.copy_(kept)
        self._kept = []
        track_statistics(pl_module, is_on=True)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Let others read what was measured at the weights."""
        outputs.update(self._at_w)


def sam(perturbation: config.Perturbation) -> SAM | None:
    """The callback of a perturbation; None for none."""
    return SAM(rho=perturbation.rho) if isinstance(perturbation, config.SAM) else None


_TINY = 1e-30
