"""LANS: LAMB on normalised gradients, with Nesterov's look ahead."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from sweeper.upstream.torchs import (
    foreach_add_,
    foreach_addcmul_,
    foreach_div,
    foreach_div_,
    foreach_lerp_,
    foreach_mul_,
    foreach_norm,
    foreach_sqrt,
)

Tensors = tuple[Tensor, ...] | list[Tensor]


class LANS(Optimizer):
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
        self,
        parameters: Any,
        *,
        lr: float,
        betas: Sequence[float],
        eps: float,
        weight_decay: float,
    ) -> None:
        defaults = {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay}
        super().__init__(parameters, {**defaults, "adapt": True, "steps": 0})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One optimizer step; the closure, if any, computes the gradients first."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            if weights := [weight for weight in group["params"] if weight.grad is not None]:
                self._update(weights, group)
        return loss

    def _update(self, weights: list[Tensor], group: dict[str, Any]) -> None:
        group["steps"] += 1
        beta1, beta2 = group["betas"]
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        lengths = [norm.where(norm > 0, 1.0) for norm in foreach_norm(gradients)]
        unit = foreach_div(gradients, lengths)
        for weight in weights:
            if not self.state[weight]:
                names = ("first_moment", "second_moment")
                self.state[weight].update({name: torch.zeros_like(weight) for name in names})
        first = [self.state[weight]["first_moment"] for weight in weights]
        second = [self.state[weight]["second_moment"] for weight in weights]
        foreach_lerp_(first, unit, 1 - beta1)
        foreach_mul_(second, beta2)
        foreach_addcmul_(second, unit, unit, value=1 - beta2)
        roots = foreach_sqrt(second)
        foreach_div_(roots, (1 - beta2 ** group["steps"]) ** 0.5)
        foreach_add_(roots, group["eps"])
        means = foreach_div(first, 1 - beta1 ** group["steps"])
        averaged, current = (_directions(weights, of, roots, group) for of in (means, unit))
        foreach_add_(weights, averaged, alpha=-group["lr"] * beta1)
        foreach_add_(weights, current, alpha=-group["lr"] * (1 - beta1))


def _directions(weights: Tensors, above: Tensors, roots: Tensors, group: dict[str, Any]) -> Tensors:
    """``above / roots + weight_decay w`` of each layer, rescaled to the norm of its weights."""
    directions = foreach_div(above, roots)
    foreach_add_(directions, weights, alpha=group["weight_decay"])
    if group["adapt"]:
        norms = zip(foreach_norm(weights), foreach_norm(directions), strict=True)
        ratios = [(w / u).where((w > 0) & (u > 0), 1.0) for w, u in norms]
        foreach_mul_(directions, ratios)
    return directions
