"""CLARS: LARS by the mean of the norms, instead of by the norm of the mean."""

from typing import Any, Unpack

from torch import Tensor

from lightning_modules.optimizers.micro_gradients import NORMS
from lightning_modules.optimizers.momentum_on_parts import MomentumOnParts, Settings
from lightning_modules.optimizers.trust import lars_directions


class CLARS(MomentumOnParts):
    """LARS whose trust ratio holds the layer's gradient variance.

    ``trust = trust_coeff |w| / (mean_i |g_i| + weight_decay |w|)`` over the micro-batches ``i`` of
    the global batch. The mean of the norms is never below the norm of the mean, so the rate is
    never above LARS's; they are equal where all ``g_i`` are parallel.

    Args:
        parameters: tensors or groups of them.
        trust_coeff: rate of a layer relative to its weights [dimensionless].
        settings: as `Settings`; the weight decay is inside the trust ratio, as in LARS.

    Source:
        Huo, Gu & Huang 2021 (AAAI), "Large Batch Optimization for Deep Learning Using New
        Complete Layer-Wise Adaptive Rate Scaling" (from memory). Differs from the paper: ``g_i`` is
        a micro-batch's gradient, not an example's.
    """

    statistic = NORMS

    def __init__(
        self, parameters: Any, *, trust_coeff: float, **settings: Unpack[Settings]
    ) -> None:
        super().__init__(parameters, {"trust_coeff": trust_coeff}, **settings)

    def _directions(
        self,
        parameters: list[Tensor],
        gradients: list[Tensor],
        statistics: list[Tensor],
        group: dict[str, Any],
    ) -> list[Tensor]:
        return lars_directions(parameters, gradients, statistics, group)
