"""BatchNorm over a fixed span of examples, for any micro-batch and number of ranks."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from lightning_modules.layers.position import StepPosition
from lightning_modules.layers.sync_group import SyncGroup, normalise_together

PlainBatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.SyncBatchNorm


class GhostBatchNorm(nn.Module):
    """BatchNorm whose statistics are those of `span` consecutive examples of the global batch.

    Known as ghost batch normalisation. Running statistics are those of one process that sees
    the epoch's spans in order: ``running <- (1 - momentum) running + momentum statistics``. Each
    rank sums the terms of its own spans with their final weights; `merge_ranks` adds them up once
    an epoch, so they do not depend on the layout either.

    A span larger than the micro-batch is normalised by several ranks together.

    Source:
        Hoffer, Hubara & Soudry 2017, arXiv:1705.08741, algorithm 1; a span of 32 is Goyal et al.
        2017's per-worker BatchNorm.
    """

    running_mean: Tensor
    running_var: Tensor
    _mean_terms: Tensor
    _var_terms: Tensor

    def __init__(
        self,
        plain: PlainBatchNorm,
        *,
        span: int,
        position: StepPosition,
        together: SyncGroup | None = None,
    ) -> None:
        super().__init__()
        assert plain.momentum is not None
        assert plain.running_mean is not None
        assert plain.running_var is not None
        self.weight, self.bias = plain.weight, plain.bias
        self.eps, self.momentum = plain.eps, plain.momentum
        self.span, self.position, self._together = span, position, together
        self.register_buffer("running_mean", plain.running_mean)
        self.register_buffer("running_var", plain.running_var)
        self.register_buffer("_mean_terms", torch.zeros_like(plain.running_mean), persistent=False)
        self.register_buffer("_var_terms", torch.zeros_like(plain.running_var), persistent=False)
        self._spans_counted = 0
        self.is_tracking = True

    def forward(self, x: Tensor) -> Tensor:
        """Normalise x, shape (n, channels, ...); in training n is a multiple of the span."""
        if not self.training:
            return self._normalise(x, self.running_mean, self.running_var)
        if self.is_tracking:
            self._decay_to(self.position.first_example // self.span)
            self._spans_counted += max(1, len(x) // self.span)
        if self._together is not None:
            return self._normalise_together(x, self._together)
        mean, var = (self._mean_terms, self._var_terms) if self.is_tracking else (None, None)
        if len(x) == self.span:
            return self._normalise(x, mean, var)
        return torch.cat([self._normalise(span, mean, var) for span in x.split(self.span)])

    def take_terms(self, end: int) -> Tensor:
        """Terms of the spans since the last call, weighed for a later span; forgets them.

        They are means, then variances, shape (2 x channels,); `end` is the later span's index in
        the epoch.
        """
        self._decay_to(end)
        terms = torch.cat([self._mean_terms, self._var_terms])
        self._forget_terms()
        return terms

    def add_terms(self, terms: Tensor, spans: int) -> None:
        """Move the running statistics on by a step's sum of what `take_terms` returns."""
        keep = (1 - self.momentum) ** spans
        mean, var = terms.chunk(2)
        self.running_mean.mul_(keep).add_(mean)
        self.running_var.mul_(keep).add_(var)

    def merge_ranks(self, spans_in_epoch: int) -> None:
        """Bring the running statistics to the end of the epoch, equal on all ranks.

        Does nothing if all terms have been taken already.

        Does nothing if all terms have been taken already. `spans_in_epoch` are those that all ranks
        together saw since the last merge.
        """
        if not self._spans_counted:
            return
        terms = self.take_terms(spans_in_epoch)
        if dist.is_initialized() and dist.get_world_size() > 1:
            dist.all_reduce(terms)
        self.add_terms(terms, spans_in_epoch)

    @property
    def has_terms(self) -> bool:
        """Whether a span was seen since the last merge."""
        return self._spans_counted > 0

    def state_of_terms(self) -> dict[str, Any]:
        """This rank's terms since the last merge, and the span that they are weighed for."""
        terms = torch.cat([self._mean_terms, self._var_terms])
        return {"terms": terms, "spans": self._spans_counted, "keep": 1 - self.momentum}

    def load_terms(self, state: dict[str, Any]) -> None:
        """Restore what `state_of_terms` returned."""
        mean, var = state["terms"].to(self._mean_terms).chunk(2)
        self._mean_terms.copy_(mean)
        self._var_terms.copy_(var)
        self._spans_counted = state["spans"]

    def _forget_terms(self) -> None:
        self._mean_terms.zero_()
        self._var_terms.zero_()
        self._spans_counted = 0

    def _normalise_together(self, x: Tensor, together: SyncGroup) -> Tensor:
        normalised, mean, var = normalise_together(x, self.weight, self.bias, self.eps, together)
        if self.is_tracking:
            for terms, statistic in ((self._mean_terms, mean), (self._var_terms, var)):
                terms.mul_(1 - self.momentum)
                if together.is_first:  # the others have the same span
                    terms.add_(statistic, alpha=self.momentum)
        return normalised

    def _normalise(self, x: Tensor, mean: Tensor | None, var: Tensor | None) -> Tensor:
        return functional.batch_norm(
            x, mean, var, self.weight, self.bias, self.training, self.momentum, self.eps
        )

    def _decay_to(self, span_index: int) -> None:
        """Weigh down this rank's terms by the spans that other ranks saw in between."""
        if skipped := span_index - self._spans_counted:
            keep = (1 - self.momentum) ** skipped
            self._mean_terms.mul_(keep)
            self._var_terms.mul_(keep)
            self._spans_counted = span_index


def fix_batchnorm_span(
    model: nn.Module, *, span: int, position: StepPosition, together: SyncGroup | None = None
) -> nn.Module:
    """Replace every BatchNorm of a model, in place where it can be, by one with a fixed span.

    All layers share the position, which a callback moves on. A model that is itself a BatchNorm
    gives a new layer.
    """
    if isinstance(model, PlainBatchNorm):
        return GhostBatchNorm(model, span=span, position=position, together=together)
    for name, child in model.named_children():
        fixed = fix_batchnorm_span(child, span=span, position=position, together=together)
        setattr(model, name, fixed)
    return model


def ghost_batchnorms(model: nn.Module) -> Iterator[GhostBatchNorm]:
    """The layers of a model that `fix_batchnorm_span` made."""
    return (layer for layer in model.modules() if isinstance(layer, GhostBatchNorm))


def track_statistics(model: nn.Module, *, is_on: bool) -> None:
    """Whether training passes move the running statistics on; they do at first."""
    for layer in ghost_batchnorms(model):
        layer.is_tracking = is_on
    for layer in model.modules():  # of a user's module
        if isinstance(layer, PlainBatchNorm) and layer.running_mean is not None:
            layer.track_running_stats = is_on
