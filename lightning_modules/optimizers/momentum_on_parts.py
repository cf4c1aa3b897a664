"""What CLARS, VR-SGD and VR-LARS share: momentum on directions made from parts of the batch."""

# torch has no public names for its multi-tensor operations.
# pyright: reportPrivateUsage=false

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, TypedDict

import torch
from torch import Tensor

from lightning_modules.optimizers.foreach import ForeachOptimizer
from lightning_modules.optimizers.micro_gradients import MicroGradients, Statistic


class Settings(TypedDict):
    """Settings of every such optimizer.

    Attributes:
        lr: learning rate [dimensionless].
        momentum: decay of the buffer per step; the learning rate stands outside of it.
        weight_decay: of the weights, as each optimizer says [dimensionless].
        gradient_span: examples of each part, which planning makes the micro-batch [examples].
    """

    lr: float
    momentum: float
    weight_decay: float
    gradient_span: int


class MomentumOnParts(ForeachOptimizer):
    """``v <- momentum v + direction; w <- w - lr v``, the direction from parts of the batch.

    Attributes:
        statistic: what is averaged over the gradients of the parts.
    """

    statistic: ClassVar[Statistic]

    def __init__(
        self,
        parameters: Any,
        own: Mapping[str, float],
        *,
        lr: float,
        momentum: float,
        weight_decay: float,
        gradient_span: int,
    ) -> None:
        super().__init__(parameters, lr=lr, momentum=momentum, weight_decay=weight_decay, **own)
        self.gradient_span = gradient_span
        self.micro_gradients = MicroGradients(self.statistic)

    @abstractmethod
    def _directions(
        self,
        parameters: list[Tensor],
        gradients: list[Tensor],
        statistics: list[Tensor],
        group: dict[str, Any],
    ) -> list[Tensor]:
        """The direction of each layer before momentum; may change nothing but its own tensors."""

    def _update(
        self, parameters: list[Tensor], gradients: list[Tensor], group: dict[str, Any]
    ) -> None:
        assert self.micro_gradients is not None
        statistics = self.micro_gradients.means(parameters)
        directions = self._directions(parameters, gradients, statistics, group)
        if group["momentum"] != 0:
            buffers = self._buffers(parameters, "momentum_buffer")
            torch._foreach_mul_(buffers, group["momentum"])
            torch._foreach_add_(buffers, directions)
            directions = buffers
        torch._foreach_add_(parameters, directions, alpha=-group["lr"])
