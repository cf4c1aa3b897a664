"""LARS and LAMB of timm, with their switches set as the papers have them."""

import importlib
from collections.abc import Sequence
from typing import Any

from torch.optim import Optimizer


def lars(
    parameters: Sequence[dict[str, Any]],
    *,
    lr: float,
    momentum: float,
    nesterov: bool,
    weight_decay: float,
    trust_coeff: float,
    eps: float,
    trust_clip: bool,
) -> Optimizer:
    """LARS: ``v <- momentum v + trust (g + weight_decay w); w <- w - lr v``.

    Groups adapt by their own `adapt`, at any weight decay: timm by itself disables LARS
    where the weight decay is 0.

    Args:
        parameters: groups, each with `adapt`.
        lr: learning rate [dimensionless].
        momentum: decay of the buffer per step; the learning rate stands outside of it.
        nesterov: whether to look ahead.
        weight_decay: inside the trust ratio [dimensionless].
        trust_coeff: rate of a layer relative to its weights [dimensionless].
        eps: added to the gradient's norm; the paper has none.
        trust_clip: LARC: no layer's rate is above `lr`.

    Source:
        You, Gitman & Ginsburg 2017, arXiv:1708.03888. Differs from the paper: there the learning
        rate goes into the buffer.

    Raises:
        ValueError: if timm is not installed.
    """
    return _optimizers().Lars(
        _groups(parameters),
        lr=lr,
        momentum=momentum,
        nesterov=nesterov,
        weight_decay=weight_decay,
        trust_coeff=trust_coeff,
        eps=eps,
        trust_clip=trust_clip,
    )


def lamb(
    parameters: Sequence[dict[str, Any]],
    *,
    lr: float,
    betas: Sequence[float],
    eps: float,
    weight_decay: float,
    bias_correction: bool,
    max_grad_norm: float | None,
    trust_clip: bool,
) -> Optimizer:
    """LAMB: Adam's direction and the decay, at the norm of the layer's weights.

    Args:
        parameters: groups, each with `adapt`.
        lr: learning rate [dimensionless].
        betas: decay of the moments per step [dimensionless].
        eps: added to the root of the second moment [dimensionless].
        weight_decay: inside the trust ratio [dimensionless].
        bias_correction: whether the moments are corrected for their start at zero.
        max_grad_norm: NVLAMB's clipping of the whole gradient, which the paper does not have.
        trust_clip: LAMBC: no ratio is above 1.

    Source:
        You et al. 2019, arXiv:1904.00962.

    Raises:
        ValueError: if timm is not installed.
    """
    return _optimizers().Lamb(
        _groups(parameters),
        lr=lr,
        betas=tuple(betas),
        eps=eps,
        weight_decay=weight_decay,
        bias_correction=bias_correction,
        max_grad_norm=max_grad_norm,
        trust_clip=trust_clip,
    )


def _groups(parameters: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The groups with timm's keys."""
    return [
        {
            **{key: value for key, value in group.items() if key != "adapt"},
            "always_adapt": group["adapt"],
            **({} if group["adapt"] else {"weight_decay": 0.0}),
        }
        for group in parameters
    ]


def _optimizers() -> Any:
    try:
        return importlib.import_module("timm.optim")
    except ModuleNotFoundError as error:
        msg = (
            "optimizer=lars and optimizer=lamb need the package timm; it is not installed. "
            "Install it with: pip install 'sweeper[timm]'"
        )
        raise ValueError(msg) from error
