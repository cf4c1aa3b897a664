"""How far a model's weights are from those it started with."""

import math

import torch
from torch import Tensor, nn


class DistanceFromStart:
    """The norm of all parameters minus those at construction; running statistics are left out.

    The first weights follow from the seed, so a resumed run has them again when its model is
    built, before the checkpoint is loaded. They are kept in main memory, not on the GPU.

    Args:
        model: with the weights that it starts from.

    Source:
        Hoffer, Hubara & Soudry 2017, arXiv:1705.08741, section 3 (the distance from the start).
    """

    def __init__(self, model: nn.Module) -> None:
        self._start = [p.detach().to("cpu", copy=True) for p in model.parameters()]

    @torch.no_grad()
    def of(self, model: nn.Module) -> float:
        """The distance of the model's weights now, summed in float64 [dimensionless]."""
        pairs = zip(model.parameters(), self._start, strict=True)
        return math.sqrt(math.fsum(_squared(now, start) for now, start in pairs))


def _squared(now: Tensor, start: Tensor) -> float:
    difference = now.detach().to("cpu", torch.float64) - start.to(torch.float64)
    return difference.square().sum().item()
