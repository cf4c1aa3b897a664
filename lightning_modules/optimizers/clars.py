"""CLARS: LARS by the mean of the norms, instead of by the norm of the mean."""

# torch has no public names for its multi-tensor operations.
# pyright: reportPrivateUsage=false

from typing import Any

import torch
from torch import Tensor

from lightning_modules.optimizers.foreach import ForeachOptimizer
from lightning_modules.optimizers.micro_gradients import NORMS, MicroGradients
from lightning_modules.optimizers.trust import lars_directions


class CLARS(ForeachOptimizer):
    """LARS whose trust ratio holds the layer's gradient variance.

    ``trust = trust_coeff |w| / (mean_i |g_i| + weight_decay |w|)`` over the micro-batches ``i`` of
    the global batch. The mean of the norms is never below the norm of the mean, so the rate is
    never above LARS's; they are equal where all ``g_i`` are parallel.

    Args:
        parameters: tensors or groups of them.
        lr: learning rate [dimensionless].
        momentum: decay of the buffer per step; the learning rate stands outside of it.
        weight_decay: inside the trust ratio, as in LARS [dimensionless].
        trust_coeff: rate of a layer relative to its weights [dimensionless].
        gradient_span: examples of each ``g_i``, which planning makes the micro-batch [examples].

    Source:
        Huo, Gu & Huang 2021 (AAAI), "Large Batch Optimization for Deep Learning Using New
        Complete Layer-Wise Adaptive Rate Scaling" (from memory). Differs from the paper: ``g_i`` is
        a micro-batch's gradient, not an example's.
    """

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
        super().__init__(
            parameters,
            lr=lr,
            momentum=momentum,
            weight_decay=weight_decay,
            trust_coeff=trust_coeff,
        )
        self.gradient_span = gradient_span
        self.micro_gradients = MicroGradients(NORMS)

    def _update(
        self, parameters: list[Tensor], gradients: list[Tensor], group: dict[str, Any]
    ) -> None:
        assert self.micro_gradients is not None
        mean_norms = self.micro_gradients.means(parameters)
        directions = lars_directions(parameters, gradients, mean_norms, group)
        directions = self._with_momentum(parameters, directions, group)
        torch._foreach_add_(parameters, directions, alpha=-group["lr"])
