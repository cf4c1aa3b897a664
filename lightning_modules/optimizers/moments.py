"""Adam's moments, for a list of tensors at once."""

# torch has no public names for its multi-tensor operations.
# pyright: reportPrivateUsage=false

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """Bias-corrected moments after a step.

    Attributes:
        first: ``m / (1 - beta1**step)``.
        denominators: ``sqrt(v / (1 - beta2**step)) + eps``.
    """

    first: list[Tensor]
    denominators: list[Tensor]


def updated_moments(
    gradients: list[Tensor],
    first: list[Tensor],
    second: list[Tensor],
    *,
    betas: tuple[float, float],
    eps: float,
    step: int,
) -> Moments:
    """Move the moments on, in place, and correct them for their start at zero.

    Args:
        gradients: of this step.
        first: ``m <- beta1 m + (1 - beta1) g``.
        second: ``v <- beta2 v + (1 - beta2) g**2``.
        betas: decay of the first and of the second moment per step [dimensionless].
        eps: added to the denominator.
        step: 1-based.

    Source:
        Kingma & Ba 2014, arXiv:1412.6980.
    """
    beta1, beta2 = betas
    torch._foreach_lerp_(first, gradients, 1 - beta1)
    torch._foreach_mul_(second, beta2)
    torch._foreach_addcmul_(second, gradients, gradients, value=1 - beta2)
    denominators = list(torch._foreach_sqrt(second))
    torch._foreach_div_(denominators, (1 - beta2**step) ** 0.5)
    torch._foreach_add_(denominators, eps)
    return Moments(
        first=list(torch._foreach_div(first, 1 - beta1**step)), denominators=denominators
    )
