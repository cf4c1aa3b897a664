"""timm's LARS, LAMB and Muon; `adapt` of a group switches its trust ratio, at any weight decay.

By default, timm disables the trust ratio where the weight decay is 0. Settings are timm's; conf
sets them as in the papers.
"""

import importlib
from collections.abc import Sequence
from typing import Any

from torch.optim import Optimizer


def lars(parameters: Sequence[dict[str, Any]], **settings: Any) -> Optimizer:
    """LARS: ``v <- momentum v + trust (g + weight_decay w); w <- w - lr v``.

    With ``trust = trust_coeff |w| / (|g| + weight_decay |w| + eps)``, 1 where a norm is zero.

    Source:
        You, Gitman & Ginsburg 2017, arXiv:1708.03888. Differs from the paper: there the learning
        rate goes into the buffer.

    Raises:
        ValueError: if timm is not installed.
    """
    return _import_timm().Lars(_timm_groups(parameters), **settings)


def lamb(
    parameters: Sequence[dict[str, Any]], *, betas: Sequence[float], **settings: Any
) -> Optimizer:
    """LAMB: Adam's direction plus weight decay, rescaled to the norm of the layer's weights.

    Source:
        You et al. 2019, arXiv:1904.00962.

    Raises:
        ValueError: if timm is not installed.
    """
    return _import_timm().Lamb(_timm_groups(parameters), betas=tuple(betas), **settings)


def muon(
    parameters: Sequence[dict[str, Any]], *, betas: Sequence[float], **settings: Any
) -> Optimizer:
    """Muon: the momentum of a matrix, replaced by the nearest matrix with orthogonal rows.

    A convolution is a matrix of shape (out, in x height x width). What is no matrix, has fewer
    than 4 rows or columns, or more than 128 of one for each of the other, takes AdamW's step at
    the same rate, and so do depthwise convolutions and weights of shape (1, n, d); `betas` are
    AdamW's.

    Source:
        Jordan et al. 2024, kellerjordan.github.io/posts/muon. Differs from there: embeddings and
        the last layer are matrices like all others.

    Raises:
        ValueError: if timm is not installed.
    """
    return _import_timm().Muon(parameters, betas=tuple(betas), **settings)


def _timm_groups(parameters: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            **{key: value for key, value in group.items() if key != "adapt"},
            "always_adapt": group["adapt"],
            **({} if group["adapt"] else {"weight_decay": 0.0}),  # else timm adapts
        }
        for group in parameters
    ]


def _import_timm() -> Any:
    try:
        return importlib.import_module("timm.optim")
    except ModuleNotFoundError as error:
        msg = (
            "optimizers lars, lamb, vr_lars, vr_lamb and muon need the package timm; it is not "
            "installed. Install it with: pip install 'batch-sweeper[timm]'"
        )
        raise ValueError(msg) from error
