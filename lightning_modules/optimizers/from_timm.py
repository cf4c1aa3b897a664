"""timm's LARS, LAMB and Muon; `adapt` of a group switches its trust ratio, at any weight decay.

By default, timm disables the trust ratio where the weight decay is 0. Settings are timm's; conf
sets them as in the papers.
"""

import importlib
from collections.abc import Sequence
from functools import wraps
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from lightning_modules.process.shards import shard_like, whole


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
    optimizers = _import_timm()
    _orthogonalize_whole_matrices()
    return optimizers.Muon(parameters, betas=tuple(betas), **settings)


def _orthogonalize_whole_matrices() -> None:
    """Have timm's Muon gather a matrix of shards: its bfloat16 sums differ by parts, by 2 %."""
    muons: Any = importlib.import_module("timm.optim.muon")
    own = muons.zeropower_via_newtonschulz

    @wraps(own)
    def orthogonalize(matrix: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return shard_like(matrix, own(whole(matrix), *args, **kwargs))

    if not hasattr(own, "__wrapped__"):
        muons.zeropower_via_newtonschulz = orthogonalize


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
