"""Optimizers that also use a statistic of the gradients of the parts of a batch."""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from lightning_modules.optimizers.by_weight import ByWeight


class OnParts(ByWeight):
    """An optimizer whose callback sets `means` before each step.

    Planning sets the micro-batch to the size of a part, `gradient_span` examples.

    Attributes:
        degree: of the statistic in the gradient: 1 for a norm, 2 for a square.
        means: the mean of the statistic over the parts, by weight.
    """

    degree: ClassVar[int]
    means: dict[Tensor, Tensor]

    @staticmethod
    def statistic(gradient: Tensor) -> Tensor:
        """Of a weight's gradient in a part of the batch."""
        raise NotImplementedError


class BSIAdam(OnParts):
    """Batch-size-invariant Adam: the squares of the parts' gradients are averaged, then rooted.

    With the gradients ``g_i`` of the parts, their mean ``g``, and Adam's bias corrections::

        m <- beta1 m + (1 - beta1) g
        v <- beta2 v + (1 - beta2) mean_i g_i**2
        w <- w - lr (m / (sqrt(v) + eps) + weight_decay w)

    ``v`` does not depend on the number of parts, so at `k` times as many the rate is `k` times as
    high, without a root, and the betas are to the power of `k`. With one part it is AdamW.

    Source:
        Wang & Aitchison 2024, arXiv:2402.18824.
    """

    degree = 2

    def __init__(
        self,
        parameters: Any,
        *,
        lr: float,
        betas: Sequence[float],
        eps: float,
        weight_decay: float,
        gradient_span: int,
    ) -> None:
        del gradient_span  # planning made it the micro-batch
        defaults = {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay}
        super().__init__(parameters, {**defaults, "steps": 0})

    @staticmethod
    def statistic(gradient: Tensor) -> Tensor:
        """Its square."""
        return gradient.square()

    def _update(self, weight: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state, steps, (beta1, beta2) = self.state[weight], group["steps"], group["betas"]
        if not state:
            names = ("first_moment", "second_moment")
            state.update({name: torch.zeros_like(weight) for name in names})
        first = state["first_moment"].lerp_(gradient, 1 - beta1) / (1 - beta1**steps)
        second = state["second_moment"].lerp_(self.means[weight], 1 - beta2) / (1 - beta2**steps)
        weight.mul_(1 - group["lr"] * group["weight_decay"])
        weight.addcdiv_(first, second.sqrt_().add_(group["eps"]), value=-group["lr"])


class CLARS(OnParts):
    """LARS with the mean norm of the parts' gradients for the norm of their mean.

    With the gradients ``g_i`` of the parts and their mean ``g``, per layer::

        trust = trust_coeff |w| / (mean_i |g_i| + weight_decay |w|), 1 where a norm is zero
        v <- momentum v + trust (g + weight_decay w)
        w <- w - lr v

    The mean of the norms is at least the norm of the mean, so the trust ratio is at most that of
    LARS, and equal where all ``g_i`` are parallel. It is 1 in groups with `adapt` false.

    Source:
        Huo, Gu & Huang 2020, arXiv:2002.01576, as its abstract and surveys describe it: no full
        text was available. There ``g_i`` is the gradient of an example. The place of the rate and
        of the weight decay is that of `lars`.
    """

    degree = 1

    def __init__(
        self,
        parameters: Any,
        *,
        lr: float,
        momentum: float,
        weight_decay: float,
        trust_coeff: float,
        gradient_span: int,
    ) -> None:
        del gradient_span  # planning made it the micro-batch
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        own = {"trust_coeff": trust_coeff, "adapt": True, "steps": 0}
        super().__init__(parameters, {**defaults, **own})

    @staticmethod
    def statistic(gradient: Tensor) -> Tensor:
        """Its norm."""
        return torch.linalg.vector_norm(gradient)

    def _update(self, weight: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        direction = gradient.add(weight, alpha=group["weight_decay"])
        if group["adapt"]:
            mean = self.means[weight]
            size = torch.linalg.vector_norm(weight)
            trust = group["trust_coeff"] * size / (mean + group["weight_decay"] * size)
            direction.mul_(trust.where((size > 0) & (mean > 0), 1.0))
        state = self.state[weight]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(weight)
        buffer = state["momentum_buffer"].mul_(group["momentum"]).add_(direction)
        weight.add_(buffer, alpha=-group["lr"])
