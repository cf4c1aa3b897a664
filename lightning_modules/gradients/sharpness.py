"""Climbing before descending: losses at worse weights (SAM) or on worse inputs (ConAdv)."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from lightning_modules.gradients.flat_weights import flattened, unflattened
from lightning_modules.layers.ghost_batchnorm import frozen_statistics

#: Mean loss of a micro-batch from the model's outputs.
Loss = Callable[[Tensor], Tensor]


class SAM(nn.Module):
    """The loss at ``w + rho g / |g|``, with ``g`` the micro-batch's gradient over all layers.

    Args:
        rho: how far to climb.

    Source:
        Foret et al. 2020, arXiv:2010.01412, without the second-order term.
    """

    def __init__(self, *, rho: float) -> None:
        super().__init__()
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

    def before_step(self, model: nn.Module) -> None:
        """Nothing to keep between steps."""


class ConAdv(nn.Module):
    """Half the clean loss, half that of inputs moved against the weights of some steps ago.

    ``x' = x + radius sign(dl/dx)`` at the weights before the last `stale_steps` steps; those of
    the start until there are so many. Differs from the paper: the adversarial pass normalises by
    its own statistics but shares BatchNorm's scale and shift with the clean one.

    Args:
        model: whose weights are kept.
        radius: largest change of an input value.
        stale_steps: age of the weights [steps].

    Source:
        Liu et al. 2022, arXiv:2106.00221 (from memory).
    """

    past_weights: Tensor

    def __init__(self, model: nn.Module, *, radius: float, stale_steps: int) -> None:
        super().__init__()
        self.radius, self.stale_steps = radius, stale_steps
        self.register_buffer("past_weights", flattened(model).repeat(stale_steps, 1))

    def loss(self, model: nn.Module, inputs: Tensor, loss_of: Loss, clean: Tensor) -> Tensor:
        """The loss to descend on, given the clean loss of the same inputs."""
        if not inputs.is_floating_point():
            msg = (
                "perturbation=conadv must have inputs that can be moved a little; got inputs of "
                f"type {inputs.dtype}. Use perturbation=sam or perturbation=none with this data."
            )
            raise ValueError(msg)
        with frozen_statistics(model):
            moved = inputs.detach().requires_grad_()
            outputs = functional_call(model, self._weights(model), (moved,))
            (slope,) = torch.autograd.grad(loss_of(outputs), moved)
            adversarial = (inputs + self.radius * slope.sign()).detach()
            return (clean + loss_of(model(adversarial))) / 2

    @torch.no_grad()
    def before_step(self, model: nn.Module) -> None:
        """Keep the weights that the step is about to change."""
        if self.stale_steps:
            self.past_weights.copy_(torch.cat([self.past_weights[1:], flattened(model)[None]]))

    def _weights(self, model: nn.Module) -> dict[str, Tensor]:
        if not self.stale_steps:
            return {name: parameter.detach() for name, parameter in model.named_parameters()}
        return unflattened(model, self.past_weights[0])


def build_perturbation(perturbation: Mapping[str, Any], model: nn.Module) -> SAM | ConAdv | None:
    """What a `perturbation` group describes for a model; None for none."""
    settings = {k: v for k, v in perturbation.items() if k not in {"name", "gradient_span"}}
    if perturbation["name"] == "sam":
        return SAM(**settings)
    return ConAdv(model, **settings) if perturbation["name"] == "conadv" else None


_TINY = 1e-30
