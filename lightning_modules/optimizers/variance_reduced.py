"""VR-SGD, VR-LARS, VR-LAMB: each weight's gradient weighed by its signal-to-noise ratio."""

# torch has no public names for its multi-tensor operations.
# pyright: reportPrivateUsage=false

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, Unpack

import torch
from torch import Tensor

from lightning_modules.optimizers.foreach import ForeachOptimizer, count_step
from lightning_modules.optimizers.micro_gradients import MicroGradients, squares
from lightning_modules.optimizers.moments import updated_moments
from lightning_modules.optimizers.trust import lars_directions, scale_to_weights

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
        Jiang et al. 2023, arXiv:2309.13681, algorithm 1; no code was published.
        ``g_i`` is there the gradient of a device, here of `gradient_span` examples.
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


class Settings(TypedDict):
    """Settings that VR-SGD and VR-LARS share.

    Attributes:
        lr: learning rate [dimensionless].
        momentum: decay of the buffer per step; the learning rate stands outside of it.
        weight_decay: of the weights, as each optimizer says [dimensionless].
        floor: the least weight of a gradient; the paper's gamma [dimensionless].
        gradient_span: examples of each ``g_i``, which planning makes the micro-batch [examples].
    """

    lr: float
    momentum: float
    weight_decay: float
    floor: float
    gradient_span: int


class _WithMomentum(ForeachOptimizer):
    """``v <- momentum v + direction; w <- w - lr v``, the direction from weighed gradients."""

    def __init__(self, parameters: Any, own: Mapping[str, float], settings: Settings) -> None:
        defaults = {key: value for key, value in settings.items() if key != "gradient_span"}
        super().__init__(parameters, **defaults, **own)
        self.gradient_span = settings["gradient_span"]
        self.micro_gradients = MicroGradients(squares)

    @abstractmethod
    def _directions(
        self, parameters: list[Tensor], weighed: list[Tensor], group: dict[str, Any]
    ) -> list[Tensor]:
        """The direction of each layer before momentum; may change nothing but its own tensors."""

    def _update(
        self, parameters: list[Tensor], gradients: list[Tensor], group: dict[str, Any]
    ) -> None:
        assert self.micro_gradients is not None
        mean_squares = self.micro_gradients.means(parameters)
        weighed = signal_to_noise(gradients, mean_squares, floor=group["floor"])
        torch._foreach_mul_(weighed, gradients)
        directions = self._directions(parameters, weighed, group)
        if group["momentum"] != 0:
            buffers = self._buffers(parameters, "momentum_buffer")
            torch._foreach_mul_(buffers, group["momentum"])
            torch._foreach_add_(buffers, directions)
            directions = buffers
        torch._foreach_add_(parameters, directions, alpha=-group["lr"])


class VRSGD(_WithMomentum):
    """SGD with momentum on gradients weighed by their signal-to-noise ratio.

    ``v <- momentum v + r g + weight_decay w; w <- w - lr v``, with ``r`` of `signal_to_noise`.

    Args:
        parameters: tensors or groups of them.
        settings: as `Settings`; the weight decay is added to the gradient, not weighed.

    Source:
        Jiang et al. 2023, arXiv:2309.13681, algorithm 1.
    """

    def __init__(self, parameters: Any, **settings: Unpack[Settings]) -> None:
        super().__init__(parameters, {}, settings)

    def _directions(
        self, parameters: list[Tensor], weighed: list[Tensor], group: dict[str, Any]
    ) -> list[Tensor]:
        return list(torch._foreach_add(weighed, parameters, alpha=group["weight_decay"]))


class VRLARS(_WithMomentum):
    """LARS on gradients weighed by their signal-to-noise ratio.

    Args:
        parameters: tensors or groups of them.
        trust_coeff: rate of a layer relative to its weights [dimensionless].
        settings: as `Settings`; the weight decay is inside the trust ratio, as in LARS.

    Source:
        Jiang et al. 2023, arXiv:2309.13681, section 4.2: as VR-SGD, the weighed gradient in place
        of the gradient.
    """

    def __init__(
        self, parameters: Any, *, trust_coeff: float, **settings: Unpack[Settings]
    ) -> None:
        super().__init__(parameters, {"trust_coeff": trust_coeff}, settings)

    def _directions(
        self, parameters: list[Tensor], weighed: list[Tensor], group: dict[str, Any]
    ) -> list[Tensor]:
        return lars_directions(parameters, weighed, group)


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
        Jiang et al. 2023, arXiv:2309.13681, section 4.2: the ratio has a momentum like the
        gradient, and weighs it before both moments. The correction of its average is as Adam's.
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
        self.micro_gradients = MicroGradients(squares)

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
