"""LANS: LAMB on normalised gradients, with Nesterov's look ahead."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lightning_modules.optimizers.by_weight import ByWeight


class LANS(ByWeight):
    """LAMB made blind to the gradient's scale, so that nothing needs clipping.

    Per layer, with ``g~ = g / |g|``, Adam's bias-corrected moments ``m, v`` of ``g~``::

        r = m / (sqrt(v) + eps) + weight_decay w
        c = g~ / (sqrt(v) + eps) + weight_decay w
        w <- w - lr |w| (beta1 r / |r| + (1 - beta1) c / |c|)

    The norms of `w`, `r` and `c` are left out where any is zero, and in groups with `adapt` false.

    Source:
        Zheng et al. 2020, arXiv:2006.13484; formula as in MXNet's optimizer/lans.py.
    """

    def __init__(
        self, parameters: Any, *, lr: float, betas: Sequence[float], eps: float, weight_decay: float
    ) -> None:
        defaults = {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay}
        super().__init__(parameters, {**defaults, "adapt": True, "steps": 0})

    def _update(self, weight: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state, steps, (beta1, beta2) = self.state[weight], group["steps"], group["betas"]
        if not state:
            names = ("first_moment", "second_moment")
            state.update({name: torch.zeros_like(weight) for name in names})
        length = torch.linalg.vector_norm(gradient)
        unit = gradient / length.where(length > 0, 1.0)
        first = state["first_moment"].lerp_(unit, 1 - beta1)
        second = state["second_moment"].mul_(beta2).addcmul_(unit, unit, value=1 - beta2)
        root = (second / (1 - beta2**steps)).sqrt_().add_(group["eps"])
        averaged = _direction(weight, first / (1 - beta1**steps), root, group)
        current = _direction(weight, unit, root, group)
        weight.add_(averaged, alpha=-group["lr"] * beta1)
        weight.add_(current, alpha=-group["lr"] * (1 - beta1))


def _direction(weight: Tensor, above: Tensor, root: Tensor, group: dict[str, Any]) -> Tensor:
    """``above / root + weight_decay w`` of a layer, rescaled to the norm of its weights."""
    direction = (above / root).add_(weight, alpha=group["weight_decay"])
    if group["adapt"]:
        w, u = torch.linalg.vector_norm(weight), torch.linalg.vector_norm(direction)
        direction.mul_((w / u).where((w > 0) & (u > 0), 1.0))
    return direction
