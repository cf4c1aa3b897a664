"""Gradients weighted by how far the micro-batches agree, for VR-SGD, VR-LARS and VR-LAMB."""

from collections.abc import Sequence
from typing import Any

import torch
from pytorch_lightning import LightningModule, Trainer
from torch import Tensor
from torch.optim import Optimizer

from lightning_modules.gradients.micro_gradients import MicroGradients
from lightning_modules.methods.means_over_parts import PartMeans
from lightning_modules.process.shards import shard_like, to_save

# Keeps the ratio finite where all micro-batches agree: a fraction of the squared gradient far below
# its rounding error, and at least the smallest normal number, for gradients of 0.
_AGREED, _TINY = 1e-12, torch.finfo(torch.float32).tiny


class WeighGradients(PartMeans):
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
        self._micro.watch(pl_module, trainer)

    def use_means(
        self, optimizer: Optimizer, weights: Sequence[Tensor], means: Sequence[Tensor]
    ) -> None:
        """Weight the gradient of the whole batch; `means` are those of the squares."""
        group = optimizer.param_groups[0]
        gradients = [p.grad for p in weights if p.grad is not None]
        pairs = zip(gradients, means, strict=True)
        ratios = [signal_to_noise(*pair, floor=group["floor"]) for pair in pairs]
        if group["ratio_decay"]:
            decay: float = group["ratio_decay"]
            averages = self._averages or [torch.zeros_like(ratio) for ratio in ratios]
            self._averages = [shard_like(*pair) for pair in zip(ratios, averages, strict=True)]
            self._steps += 1
            for average, ratio in zip(self._averages, ratios, strict=True):
                average.lerp_(ratio, 1 - decay)
            ratios = [average / (1 - decay**self._steps) for average in self._averages]
        for gradient, ratio in zip(gradients, ratios, strict=True):
            gradient.mul_(ratio)

    def state_dict(self) -> dict[str, Any]:
        """The averages, in the order of the parameters, and how many steps are in them."""
        return {"averages": to_save(self._averages), "steps": self._steps}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._averages, self._steps = state_dict["averages"], state_dict["steps"]


def signal_to_noise(gradient: Tensor, mean_square: Tensor, *, floor: float) -> Tensor:
    """How far the micro-batches agree about each weight of a layer, from `floor` to 1.

    ``r = g**2 / (mean_i g_i**2 - g**2)``, divided by its mean over the layer, then clipped to
    [floor, 1]. `gradient` is ``g``, the mean over micro-batches; `mean_square` is
    ``mean_i g_i**2``; `floor` is the least weight of a gradient [dimensionless].

    Source:
        Jiang et al. 2023, arXiv:2309.13681, algorithm 1; no code was published. There ``g_i`` is
        the gradient of a device; here, that of `gradient_span` examples.
    """
    square = gradient.square()
    variance = (mean_square - square).clamp_min_(0.0).add_(square, alpha=_AGREED)
    ratio = square / variance.clamp_min_(_TINY)
    return ratio.div_(ratio.mean() + _TINY).clamp_(floor, 1.0)
