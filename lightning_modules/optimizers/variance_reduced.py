"""VR-SGD, VR-LARS, VR-LAMB: each weight's gradient weighed by its signal-to-noise ratio."""

# torch has no public names for its multi-tensor operations.
# pyright: reportPrivateUsage=false

from collections.abc import Sequence
from typing import Any, Unpack

import torch
from torch import Tensor

from lightning_modules.optimizers.foreach import ForeachOptimizer, count_step
from lightning_modules.optimizers.micro_gradients import SQUARES, MicroGradients
from lightning_modules.optimizers.moments import updated_moments
from lightning_modules.optimizers.momentum_on_parts import MomentumOnParts, Settings
from lightning_modules.optimizers.trust import lars_directions, norms, scale_to_weights

# Keeps the ratio finite where all micro-batches agree; far below any squared gradient.
_TINY = 1e-30


def signal_to_noise(
    gradients: list[Tensor], mean_squares: list[Tensor], *, floor: float
) -> list[Tensor]:
    """How far the micro-batches agree about each weight, from `floor` to 1.

    ``r = g**2 / (mean_i g_i**2 - g**2)``, divided by its mean over the layer, then clipped to
    [floor, 1].

    Args:
        gradients: ``g``, the mean over micro-batches.
        mean_squares: ``mean_i g_i**2``.
        floor: the least weight of a gradient [dimensionless].

    Source:
        Jiang et al. 2023, arXiv:2309.13681 (from memory; no code was published).
    """
    squares = torch._foreach_mul(gradients, gradients)
    variances = torch._foreach_sub(mean_squares, squares)
    torch._foreach_clamp_min_(variances, 0.0)
    torch._foreach_add_(variances, _TINY)
    ratios = list(torch._foreach_div(squares, variances))
    torch._foreach_div_(ratios, [ratio.mean() + _TINY for ratio in ratios])
    torch._foreach_clamp_min_(ratios, floor)
    torch._foreach_clamp_max_(ratios, 1.0)
    return ratios


def _weighed(gradients: list[Tensor], mean_squares: list[Tensor], *, floor: float) -> list[Tensor]:
    weighed = signal_to_noise(gradients, mean_squares, floor=floor)
    torch._foreach_mul_(weighed, gradients)
    return weighed


class VRSGD(MomentumOnParts):
    """SGD with momentum on gradients weighed by their signal-to-noise ratio.

    ``v <- momentum v + r g + weight_decay w; w <- w - lr v``, with ``r`` of `signal_to_noise`.

    Args:
        parameters: tensors or groups of them.
        floor: the least weight of a gradient; the paper's gamma [dimensionless].
        settings: as `Settings`; the weight decay is added to the gradient, not weighed.

    Source:
        Jiang et al. 2023, arXiv:2309.13681 (from memory).
    """

    statistic = SQUARES

    def __init__(self, parameters: Any, *, floor: float, **settings: Unpack[Settings]) -> None:
        super().__init__(parameters, {"floor": floor}, **settings)

    def _directions(
        self,
        parameters: list[Tensor],
        gradients: list[Tensor],
        statistics: list[Tensor],
        group: dict[str, Any],
    ) -> list[Tensor]:
        directions = _weighed(gradients, statistics, floor=group["floor"])
        torch._foreach_add_(directions, parameters, alpha=group["weight_decay"])
        return directions


class VRLARS(MomentumOnParts):
    """LARS on gradients weighed by their signal-to-noise ratio.

    Args:
        parameters: tensors or groups of them.
        trust_coeff: rate of a layer relative to its weights [dimensionless].
        floor: the least weight of a gradient; the paper's gamma [dimensionless].
        settings: as `Settings`; the weight decay is inside the trust ratio, as in LARS.

    Source:
        Jiang et al. 2023, arXiv:2309.13681 (from memory).
    """

    statistic = SQUARES

    def __init__(
        self, parameters: Any, *, trust_coeff: float, floor: float, **settings: Unpack[Settings]
    ) -> None:
        super().__init__(parameters, {"trust_coeff": trust_coeff, "floor": floor}, **settings)

    def _directions(
        self,
        parameters: list[Tensor],
        gradients: list[Tensor],
        statistics: list[Tensor],
        group: dict[str, Any],
    ) -> list[Tensor]:
        weighed = _weighed(gradients, statistics, floor=group["floor"])
        return lars_directions(parameters, weighed, norms(weighed), group)


class VRLAMB(ForeachOptimizer):
    """LAMB on gradients weighed by an average of their signal-to-noise ratios.

    ``p <- beta3 p + (1 - beta3) r``, corrected for its start at zero; ``p g`` feeds both moments.

    Args:
        parameters: tensors or groups of them.
        lr: learning rate [dimensionless].
        betas: decay of the two moments and of the ratio per step [dimensionless].
        eps: added to the root of the second moment [dimensionless].
        weight_decay: inside the trust ratio, as in LAMB [dimensionless].
        floor: the least weight of a gradient; the paper's gamma [dimensionless].
        gradient_span: examples of each ``g_i``, which planning makes the micro-batch [examples].

    Source:
        Jiang et al. 2023, arXiv:2309.13681 (from memory).
    """

    def __init__(
        self,
        parameters: Any,
        *,
        lr: float,
        betas: Sequence[float],
        eps: float,
        weight_decay: float,
        floor: float,
        gradient_span: int,
    ) -> None:
        super().__init__(
            parameters,
            lr=lr,
            betas=tuple(betas),
            eps=eps,
            weight_decay=weight_decay,
            floor=floor,
        )
        self.gradient_span = gradient_span
        self.micro_gradients = MicroGradients(SQUARES)

    def _update(
        self, parameters: list[Tensor], gradients: list[Tensor], group: dict[str, Any]
    ) -> None:
        step = count_step(group)
        beta1, beta2, beta3 = group["betas"]
        moments = updated_moments(
            self._weighed(parameters, gradients, beta3=beta3, floor=group["floor"], step=step),
            self._buffers(parameters, "first_moment"),
            self._buffers(parameters, "second_moment"),
            betas=(beta1, beta2),
            eps=group["eps"],
            step=step,
        )
        directions = list(torch._foreach_div(moments.first, moments.denominators))
        torch._foreach_add_(directions, parameters, alpha=group["weight_decay"])
        scale_to_weights(parameters, directions, group)
        torch._foreach_add_(parameters, directions, alpha=-group["lr"])

    def _weighed(
        self,
        parameters: list[Tensor],
        gradients: list[Tensor],
        *,
        beta3: float,
        floor: float,
        step: int,
    ) -> list[Tensor]:
        assert self.micro_gradients is not None
        ratios = signal_to_noise(gradients, self.micro_gradients.means(parameters), floor=floor)
        averages = self._buffers(parameters, "ratio_average")
        torch._foreach_lerp_(averages, ratios, 1 - beta3)
        weighed = list(torch._foreach_mul(averages, gradients))
        torch._foreach_div_(weighed, 1 - beta3**step)
        return weighed
