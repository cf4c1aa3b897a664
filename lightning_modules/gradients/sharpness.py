"""Sharpness-aware minimisation: losses at worse weights nearby."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from lightning_modules.layers.ghost_batchnorm import frozen_statistics

#: Mean loss of a micro-batch from the model's outputs.
Loss = Callable[[Tensor], Tensor]


class SAM:
    """The loss at ``w + rho g / |g|``, with ``g`` the micro-batch's gradient over all layers.

    Args:
        rho: how far to climb.

    Source:
        Foret et al. 2020, arXiv:2010.01412, without the second-order term.
    """

    def __init__(self, *, rho: float) -> None:
        self.rho = rho

    def loss(self, model: nn.Module, inputs: Tensor, loss_of: Loss, clean: Tensor) -> Tensor:
        """The loss to descend on, given the clean loss of the same inputs."""
        named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        gradients = torch.autograd.grad(clean, list(named.values()))
        reach = self.rho / torch.nn.utils.get_total_norm(gradients).clamp_min(_TINY)
        climbed = {
            name: weight + reach * gradient
            for (name, weight), gradient in zip(named.items(), gradients, strict=True)
        }
        with frozen_statistics(model):
            return loss_of(functional_call(model, climbed, (inputs,)))


def build_perturbation(perturbation: Mapping[str, Any]) -> SAM | None:
    """What a `perturbation` group describes; None for none."""
    return SAM(rho=perturbation["rho"]) if perturbation["name"] == "sam" else None


_TINY = 1e-30
