"""LANS: LAMB on normalised gradients, with Nesterov's look ahead."""

# torch has no public names for its multi-tensor operations.
# pyright: reportPrivateUsage=false

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lightning_modules.optimizers.foreach import ForeachOptimizer, count_step
from lightning_modules.optimizers.moments import updated_moments
from lightning_modules.optimizers.trust import norms, scale_to_weights


class LANS(ForeachOptimizer):
    """LAMB made blind to the gradient's scale, so that nothing needs clipping.

    Per layer, with ``g~ = g / |g|``, Adam's bias-corrected moments ``m, v`` of ``g~``::

        r = m / (sqrt(v) + eps) + weight_decay w
        c = g~ / (sqrt(v) + eps) + weight_decay w
        w <- w - lr |w| (beta1 r / |r| + (1 - beta1) c / |c|)

    Args:
        parameters: tensors or groups of them.
        lr: learning rate [dimensionless].
        betas: decay of the moments per step [dimensionless].
        eps: added to the root of the second moment [dimensionless].
        weight_decay: inside the trust ratio, as in LAMB [dimensionless].

    Source:
        Zheng et al. 2020, arXiv:2006.13484; formula as in MXNet's optimizer/lans.py.
    """

    def __init__(
        self,
        parameters: Any,
        *,
        lr: float,
        betas: Sequence[float],
        eps: float,
        weight_decay: float,
    ) -> None:
        super().__init__(parameters, lr=lr, betas=tuple(betas), eps=eps, weight_decay=weight_decay)

    def _update(
        self, parameters: list[Tensor], gradients: list[Tensor], group: dict[str, Any]
    ) -> None:
        lengths = [torch.where(norm > 0, norm, torch.ones_like(norm)) for norm in norms(gradients)]
        unit_gradients = list(torch._foreach_div(gradients, lengths))
        moments = updated_moments(
            unit_gradients,
            self._buffers(parameters, "first_moment"),
            self._buffers(parameters, "second_moment"),
            betas=group["betas"],
            eps=group["eps"],
            step=count_step(group),
        )
        beta1, _ = group["betas"]
        averaged = self._directions(parameters, moments.first, moments.denominators, group)
        current = self._directions(parameters, unit_gradients, moments.denominators, group)
        torch._foreach_add_(parameters, averaged, alpha=-group["lr"] * beta1)
        torch._foreach_add_(parameters, current, alpha=-group["lr"] * (1 - beta1))

    def _directions(
        self,
        parameters: list[Tensor],
        gradients: list[Tensor],
        denominators: list[Tensor],
        group: dict[str, Any],
    ) -> list[Tensor]:
        directions = list(torch._foreach_div(gradients, denominators))
        torch._foreach_add_(directions, parameters, alpha=group["weight_decay"])
        scale_to_weights(parameters, directions, group)
        return directions
