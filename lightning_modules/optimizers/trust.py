"""Trust ratios: a layer's rate from the norms of its weights and of its gradient."""

# torch has no public names for its multi-tensor operations.
# pyright: reportPrivateUsage=false

from typing import Any

import torch
from torch import Tensor


def norms(tensors: list[Tensor]) -> list[Tensor]:
    """Euclidean norm of each tensor."""
    return list(torch._foreach_norm(tensors))


def lars_directions(
    parameters: list[Tensor],
    gradients: list[Tensor],
    group: dict[str, Any],
) -> list[Tensor]:
    """The direction of LARS for each layer, before momentum.

    ``trust * (g + weight_decay w)`` with ``trust = trust_coeff |w| / (|g| + weight_decay |w|)``,
    1 where a norm is zero and in groups that do not adapt.

    Source:
        You, Gitman & Ginsburg 2017, arXiv:1708.03888. Differs from the paper: the learning rate
        multiplies the momentum, not what goes into it (the form of timm).
    """
    decay = group["weight_decay"]
    directions = list(torch._foreach_add(gradients, parameters, alpha=decay))
    if group["adapt"]:
        pairs = zip(norms(parameters), norms(gradients), strict=True)
        ratios = [
            _ratio(group["trust_coeff"] * w, g + decay * w, defined=(w > 0) & (g > 0))
            for w, g in pairs
        ]
        torch._foreach_mul_(directions, ratios)
    return directions


def scale_to_weights(
    parameters: list[Tensor], directions: list[Tensor], group: dict[str, Any]
) -> None:
    """Give each direction, in place, the norm of its weights: ``u <- |w| / |u| u``.

    Unchanged where a norm is zero and in groups that do not adapt.

    Source:
        You et al. 2019, arXiv:1904.00962 (LAMB), with the identity for its phi.
    """
    if not group["adapt"]:
        return
    pairs = zip(norms(parameters), norms(directions), strict=True)
    ratios = [_ratio(w, u, defined=(w > 0) & (u > 0)) for w, u in pairs]
    torch._foreach_mul_(directions, ratios)


def _ratio(above: Tensor, below: Tensor, *, defined: Tensor) -> Tensor:
    return torch.where(defined, above / below, torch.ones_like(above))
