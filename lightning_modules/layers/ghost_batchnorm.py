"""BatchNorm over a fixed span of examples, for any micro-batch and number of ranks."""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, NoReturn, TypeGuard, get_args

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lightning_modules.layers.position import StepPosition, is_in_backward
from lightning_modules.layers.replace import replace_layers
from lightning_modules.layers.sync_group import SyncGroup, normalise_together
from lightning_modules.process.world import num_ranks

PlainBatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.SyncBatchNorm


class GhostBatchNorm(nn.Module):
    """BatchNorm whose statistics are those of `span` consecutive examples of the global batch.

    Known as ghost batch normalisation. Running statistics are those of one process that sees
    the epoch's spans in order: ``running <- (1 - momentum) running + momentum statistics``. Each
    rank sums the terms of its own spans with their final weights; `merge_ranks` adds them up once
    an epoch, so they do not depend on the layout either.

    A span larger than the micro-batch is normalised by several ranks together. A forward pass that
    is repeated during the backward pass, as by activation checkpointing, is not counted again.

    Raises:
        ValueError: in training, if the layer is not called exactly once per pass, with the
            micro-batch's examples: its running statistics would be wrong.

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
        assert plain.momentum is not None, "checked by fix_batchnorm_span"
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
        self._counted_pass: int | None = None
        self.is_tracking = True
        # torch asks for SyncBatchNorm, to refuse it on CPUs
        self._stands_for = type(self if isinstance(plain, nn.SyncBatchNorm) else plain)

    @property
    def __class__(self) -> type:  # type: ignore[override]
        """The replaced layer's class, for `isinstance`: a module may freeze its BatchNorm."""
        return self._stands_for

    def forward(self, x: Tensor) -> Tensor:
        """Normalise x, shape (n, channels, ...); in training n is a multiple of the span."""
        if not self.training:
            return self._normalise(x, self.running_mean, self.running_var)
        counts = self.is_tracking and not is_in_backward()
        if counts:
            self._count(x)
        if self._together is not None:
            return self._normalise_together(x, self._together, counts=counts)
        mean, var = (self._mean_terms, self._var_terms) if self.is_tracking else (None, None)
        if mean is not None and var is not None and not counts:
            mean, var = mean.clone(), var.clone()  # discarded; checkpointing needs the same call
        if len(x) == self.span:
            return self._normalise(x, mean, var)
        return torch.cat([self._normalise(span, mean, var) for span in x.split(self.span)])

    def take_terms(self, end: int) -> Tensor:
        """Return the terms of the spans since the last call, decayed to a later span; forget them.

        They are means, then variances, shape (2 x channels,); `end` is the later span's index in
        the epoch.
        """
        self._decay_to(end)
        terms = torch.cat([self._mean_terms, self._var_terms])
        self._forget_terms()
        return terms

    def add_terms(self, terms: Tensor, spans: int) -> None:
        """Update the running statistics by a step's sum of what `take_terms` returns."""
        keep = (1 - self.momentum) ** spans
        mean, var = terms.chunk(2)
        self.running_mean.mul_(keep).add_(mean)
        self.running_var.mul_(keep).add_(var)

    def merge_ranks(self, spans_in_epoch: int) -> None:
        """Update the running statistics to the end of the epoch, equal on all ranks.

        Does nothing if all terms have been taken already. `spans_in_epoch` are those that all ranks
        together saw since the last merge.
        """
        if not self._spans_counted:
            return
        self._check_pass(self.position.moves)
        terms = self.take_terms(spans_in_epoch)
        if num_ranks() > 1:
            dist.all_reduce(terms)
        self.add_terms(terms, spans_in_epoch)

    @property
    def has_terms(self) -> bool:
        """Whether a span was seen since the last merge."""
        return self._spans_counted > 0

    def state_of_terms(self) -> dict[str, Any]:
        """This rank's terms since the last merge, and the span that they are decayed to."""
        terms = torch.cat([self._mean_terms, self._var_terms])
        return {"terms": terms, "spans": self._spans_counted, "keep": 1 - self.momentum}

    def load_terms(self, state: dict[str, Any]) -> None:
        """Restore what `state_of_terms` returned."""
        mean, var = state["terms"].to(self._mean_terms).chunk(2)
        self._mean_terms.copy_(mean)
        self._var_terms.copy_(var)
        self._spans_counted = state["spans"]
        self._counted_pass = None

    def _count(self, x: Tensor) -> None:
        """Count a pass's spans; ValueError if its rows are not the micro-batch's examples."""
        position = self.position
        if position.moves:  # else a loop that only sets the first example
            self._check_examples(x)
        self._decay_to(position.first_example // self.span)
        self._spans_counted += max(1, len(x) // self.span)

    def _check_examples(self, x: Tensor) -> None:
        position = self.position
        if self.span * x.shape[2:].numel() == 1:
            self._refuse("together with others; got one value per channel")
        if len(x) != position.examples:
            self._refuse(
                f"as a row of its own; got shape {tuple(x.shape)} for {position.examples} examples"
            )
        if self._counted_pass == position.moves:
            self._refuse("once; it was called again in the same pass")
        self._check_pass(position.moves - 1)
        self._counted_pass = position.moves

    def _check_pass(self, last: int) -> None:
        """Refuse a layer that was left out since its first pass of the epoch."""
        if self._spans_counted and self._counted_pass not in {None, last}:
            self._refuse("in every training pass of an epoch; it was left out of one")

    def _refuse(self, how: str) -> NoReturn:
        msg = (
            f"a BatchNorm of bn_span={self.span} examples must see each example of the micro-batch "
            f"{how} (a layer of {len(self.running_mean)} channels). Use another model, or a "
            "normalisation without statistics of the batch (GroupNorm, LayerNorm)."
        )
        raise ValueError(msg)

    def _forget_terms(self) -> None:
        self._mean_terms.zero_()
        self._var_terms.zero_()
        self._spans_counted = 0

    def _normalise_together(self, x: Tensor, together: SyncGroup, *, counts: bool) -> Tensor:
        normalised, mean, var = normalise_together(x, self.weight, self.bias, self.eps, together)
        if counts:
            for terms, statistic in ((self._mean_terms, mean), (self._var_terms, var)):
                terms.mul_(1 - self.momentum)
                if together.is_first:  # the others have the same span
                    terms.add_(statistic, alpha=self.momentum)
        return normalised

    def _normalise(self, x: Tensor, mean: Tensor | None, var: Tensor | None) -> Tensor:
        # not functional.batch_norm, which checks each span's shape again
        use_cudnn = torch.backends.cudnn.enabled
        return torch.batch_norm(
            x, self.weight, self.bias, mean, var, self.training, self.momentum, self.eps, use_cudnn
        )

    def _decay_to(self, span_index: int) -> None:
        """Decay this rank's terms by the spans that other ranks saw in between."""
        if skipped := span_index - self._spans_counted:
            keep = (1 - self.momentum) ** skipped
            self._mean_terms.mul_(keep)
            self._var_terms.mul_(keep)
            self._spans_counted = span_index


def fix_batchnorm_span(
    model: nn.Module, *, span: int, position: StepPosition, together: SyncGroup | None = None
) -> nn.Module:
    """Replace every BatchNorm of a model, in place where possible, by one with a fixed span.

    All layers share the position, which a callback moves on. For a model that is itself a
    BatchNorm, the new layer is returned.

    Raises:
        ValueError: for a BatchNorm that is not torch's own, or keeps no running statistics.
    """

    def replacement(layer: nn.Module) -> nn.Module | None:
        if not _is_batchnorm(layer):
            return None
        _check_plain(layer)
        ghost = GhostBatchNorm(layer, span=span, position=position, together=together)
        layer.register_forward_pre_hook(_refuse_old_layer)
        if not _has_activation(layer):
            return ghost
        after = {name: layer.get_submodule(name) for name in ("drop", "act")}
        return nn.Sequential(OrderedDict(norm=ghost, **after))

    return replace_layers(model, replacement)


def _is_batchnorm(layer: nn.Module) -> TypeGuard[PlainBatchNorm]:
    if type(layer) is GhostBatchNorm:
        return False
    becomes = getattr(layer, "cls_to_become", None)  # of a lazy layer
    return isinstance(layer, PlainBatchNorm) or becomes in get_args(PlainBatchNorm)


def _has_activation(layer: nn.Module) -> bool:
    """Whether it is one of timm's, which apply dropout and an activation after normalising."""
    kind = type(layer)
    names = {"BatchNormAct2d", "SyncBatchNormAct"}
    return kind.__name__ in names and kind.__module__.startswith("timm.")


def _check_plain(layer: nn.Module) -> None:
    """Refuse a BatchNorm that is not torch's own, or that keeps no running mean."""
    is_torchs = type(layer).forward in {nn.BatchNorm2d.forward, nn.SyncBatchNorm.forward}
    if not isinstance(layer, PlainBatchNorm):
        wrong = "made with its number of channels"
    elif not is_torchs and not _has_activation(layer):
        wrong = "torch's own (or timm's with an activation)"
    elif layer.momentum is None or layer.running_mean is None:
        wrong = "one with a momentum and running statistics"
    else:
        return
    msg = (
        f"with bn_span, a BatchNorm must be {wrong}; got {layer} ({type(layer).__module__}). "
        "Replace it in the model."
    )
    raise ValueError(msg)


def _refuse_old_layer(layer: nn.Module, *_: object) -> NoReturn:
    msg = (
        "with bn_span, the model must call its BatchNorm layers by the names under which it holds "
        f"them; it called {layer} in another way. Hold the layer in an attribute or a ModuleList."
    )
    raise ValueError(msg)


def ghost_batchnorms(model: nn.Module) -> Iterator[GhostBatchNorm]:
    """The layers of a model that `fix_batchnorm_span` made."""
    return (layer for layer in model.modules() if isinstance(layer, GhostBatchNorm))


def track_statistics(model: nn.Module, *, is_on: bool) -> None:
    """Set whether training passes update the running statistics; by default they do."""
    for layer in ghost_batchnorms(model):
        layer.is_tracking = is_on
    for layer in model.modules():  # of a user's module
        if _is_batchnorm(layer) and layer.running_mean is not None:
            layer.track_running_stats = is_on
