"""A BatchNorm span that is larger than a micro-batch: several ranks normalise it together."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from sweeper.spec.batch import BatchSplit


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncGroup:
    """Ranks whose micro-batches form a span, in the step's order; the first has its start."""

    group: Any
    count: int
    is_first: bool


def sync_group(split: BatchSplit, *, bn_span: int, rank: int) -> SyncGroup | None:
    """The ranks that this rank normalises with; None if a micro-batch holds whole spans.

    A collective call, which all ranks make.
    """
    count = split.ranks_per_span(bn_span)
    if count == 1:
        return None
    group, _ = dist.new_subgroups(count)
    return SyncGroup(group=group, count=count, is_first=rank % count == 0)


def normalise_together(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, ranks: SyncGroup
) -> tuple[Tensor, Tensor, Tensor]:
    """BatchNorm of x, shape (n, channels, ...), by the statistics of all ranks' x of equal shape.

    Each rank sends its mean and variance in the forward pass and two sums per channel in the
    backward pass; all sum what they receive in rank order.

    Returns:
        The normalised x; the span's mean and unbiased variance, shape (channels,) each.

    Source:
        Ioffe & Szegedy 2015, arXiv:1502.03167; variances of parts are combined as by Chan, Golub &
        LeVeque 1979.
    """
    normalised, mean, var = _NormaliseTogether.apply(x, weight, bias, eps, ranks)
    return normalised, mean, var


class _NormaliseTogether(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
        ranks: SyncGroup,
    ) -> tuple[Tensor, Tensor, Tensor]:
        num = x.numel() // x.shape[1] * ranks.count
        var, mean = torch.var_mean(_widen(x), dim=[0, *range(2, x.ndim)], correction=0)
        means, variances = _gather(torch.stack([mean, var]), ranks).unbind(1)
        mean = means.mean(0)
        var = variances.mean(0) + (means - mean).square().mean(0)
        ctx.save_for_backward(x, weight, mean, (var + eps).rsqrt())
        ctx.ranks, ctx.num = ranks, num
        normalised = functional.batch_norm(x, mean, var, weight, bias, training=False, eps=eps)
        unbiased = var * (num / max(1, num - 1))
        ctx.mark_non_differentiable(mean, unbiased)
        return normalised, mean, unbiased

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]  of the decorator
        ctx: Any, *slopes: Tensor
    ) -> tuple[Tensor | None, ...]:
        x, weight, mean, inverse_std = ctx.saved_tensors
        slope = _widen(slopes[0])
        standard = (_widen(x) - _per_channel(mean, x)) * _per_channel(inverse_std, x)
        axes = [0, *range(2, x.ndim)]  # all but channels
        sums = torch.stack([slope.sum(axes), (slope * standard).sum(axes)])
        of_span = _gather(sums, ctx.ranks).sum(0) / ctx.num
        slope = slope - _per_channel(of_span[0], x) - standard * _per_channel(of_span[1], x)
        scale = inverse_std if weight is None else inverse_std * weight
        return (
            (slope * _per_channel(scale, x)).to(x.dtype),
            None if weight is None else sums[1].to(weight.dtype),
            None if weight is None else sums[0].to(weight.dtype),
            None,
            None,
        )


def _gather(tensor: Tensor, ranks: SyncGroup) -> Tensor:
    """The tensors of all ranks of the span, stacked in their order."""
    gathered = tensor.new_empty(ranks.count, *tensor.shape)
    dist.all_gather(list(gathered), tensor, group=ranks.group)
    return gathered


def _widen(x: Tensor) -> Tensor:
    """At least float32."""
    return x if x.dtype in {torch.float32, torch.float64} else x.float()


def _per_channel(values: Tensor, x: Tensor) -> Tensor:
    return values.view(1, -1, *[1] * (x.ndim - 2))
