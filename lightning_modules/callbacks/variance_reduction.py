"""Gradients weighted by how far the micro-batches agree, for VR-SGD, VR-LARS and VR-LAMB."""

import math
from typing import Any

import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Callback
from torch import Tensor
from torch.optim import Optimizer

from lightning_modules.callbacks.steps import gradient_norm, loss_scale
from lightning_modules.gradients.micro_gradients import MicroGradients
from sweeper.upstream.torchs import (
    foreach_add_,
    foreach_clamp_max_,
    foreach_clamp_min_,
    foreach_div,
    foreach_div_,
    foreach_lerp_,
    foreach_mul,
    foreach_mul_,
    foreach_sub,
)

# Keeps the ratio finite where all micro-batches agree: a fraction of the squared gradient far below
# its rounding error, and at least the smallest normal number, for gradients of 0.
_AGREED, _TINY = 1e-12, torch.finfo(torch.float32).tiny


class WeighGradients(Callback):
    """Multiplies each weight's gradient by its signal-to-noise ratio, before the optimizer's step.

    With a `ratio_decay` ``d``, it multiplies by the moving average ``p <- d p + (1 - d) r``
    instead, with Adam's bias correction. The optimizer's groups hold `ratio_decay` and `floor`
    (variance_reduced.py). The ratios are the same on all ranks.
    """

    def __init__(self) -> None:
        self._micro = MicroGradients(torch.square)
        self._averages: list[Tensor] = []
        self._steps = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Watch every micro-batch's gradient from now on."""
        self._averages = [average.to(pl_module.device) for average in self._averages]
        self._micro.watch(
            pl_module.parameters(),
            accumulation_steps=lambda: trainer.accumulate_grad_batches,
            loss_scale=lambda: loss_scale(trainer),
        )

    @torch.no_grad()
    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer
    ) -> None:
        """Weight the gradient of the whole batch."""
        is_scaled = getattr(trainer.precision_plugin, "scaler", None) is not None
        if is_scaled and not math.isfinite(gradient_norm(pl_module.parameters()).item()):
            return  # the loss scaler skips this step
        group = optimizer.param_groups[0]
        weights = [p for p in pl_module.parameters() if p.grad is not None]
        gradients = [p.grad for p in weights if p.grad is not None]
        ratios = signal_to_noise(gradients, self._micro.means(weights), floor=group["floor"])
        if group["ratio_decay"]:
            decay: float = group["ratio_decay"]
            self._averages = self._averages or [torch.zeros_like(ratio) for ratio in ratios]
            self._steps += 1
            foreach_lerp_(self._averages, ratios, 1 - decay)
            ratios = list(foreach_div(self._averages, 1 - decay**self._steps))
        foreach_mul_(gradients, ratios)

    def state_dict(self) -> dict[str, Any]:
        """The averages, in the order of the parameters, and how many steps are in them."""
        return {"averages": self._averages, "steps": self._steps}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._averages, self._steps = state_dict["averages"], state_dict["steps"]


def signal_to_noise(
    gradients: list[Tensor], mean_squares: list[Tensor], *, floor: float
) -> list[Tensor]:
    """How far the micro-batches agree about each weight, from `floor` to 1.

    ``r = g**2 / (mean_i g_i**2 - g**2)``, divided by its mean over the layer, then clipped to
    [floor, 1].

    Args:
        gradients: ``g``, the mean over micro-batches.
        mean_squares: ``mean_i g_i**2``.
        floor: the least weight of a gradient [dimensionless].

    Source:
        Jiang et al. 2023, arXiv:2309.13681, algorithm 1; no code was published. There ``g_i`` is
        the gradient of a device; here, that of `gradient_span` examples.
    """
    squares = foreach_mul(gradients, gradients)
    variances = foreach_sub(mean_squares, squares)
    foreach_clamp_min_(variances, 0.0)
    foreach_add_(variances, squares, alpha=_AGREED)
    foreach_clamp_min_(variances, _TINY)
    ratios = list(foreach_div(squares, variances))
    foreach_div_(ratios, [ratio.mean() + _TINY for ratio in ratios])
    foreach_clamp_min_(ratios, floor)
    foreach_clamp_max_(ratios, 1.0)
    return ratios
