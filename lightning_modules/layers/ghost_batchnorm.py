"""BatchNorm over a fixed span of examples, for any micro-batch and number of ranks."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn, TypeGuard, get_args

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lightning_modules.layers.batch_position import StepPosition
from lightning_modules.layers.run_layer import RunLayer, change_class, layer_of
from lightning_modules.layers.sync_group import SyncGroup, normalise_together
from lightning_modules.process.world import num_ranks
from sweeper.upstream.torchs import is_in_backward, lazy_target

PlainBatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.SyncBatchNorm


@dataclass(slots=True, kw_only=True)
class _Spans:
    """What a run keeps for a BatchNorm layer."""

    span: int  # examples that are normalised together [examples]
    position: StepPosition  # of the micro-batch
    together: SyncGroup | None  # ranks that share a span; None if a micro-batch holds whole spans
    is_tracking: bool = True  # whether training passes update the running statistics
    #: of means, then of variances, of this rank's spans since the last merge, each decayed to the
    #: span `counted`; shape (2, channels), None if there are none.
    terms: Tensor | None = None
    counted: int = 0  # the span of the epoch that the terms are decayed to [spans]
    first: int = 0  # the epoch's span from which this layer has been used [spans]
    counted_pass: int | None = None  # the last pass that was counted
    is_copy: bool = False

    def begin_anew(self) -> "_Spans":
        """For passes that are no part of training."""
        return _Spans(span=self.span, position=self.position, together=self.together)

    def copy_state(self, layer: nn.Module) -> "_Spans":
        """For a copy, which begins with the running statistics of the epoch's start."""
        self.position.add_layer(layer)
        return _Spans(span=self.span, position=self.position, together=self.together, is_copy=True)


class GhostBatchNorm(RunLayer):
    """BatchNorm whose statistics are those of `span` consecutive examples of the global batch.

    Known as ghost batch normalisation. Running statistics are those of a single process that sees
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

    state: _Spans
    weight: Tensor
    bias: Tensor
    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor | None
    momentum: float
    eps: float

    def forward(self, x: Tensor) -> Tensor:
        """Normalise x, shape (n, channels, ...); in training n is a multiple of the span."""
        normalised = self._normalise_spans(x) if self.training else self._normalise(x, None)
        if _has_activation(self.plain_class):
            return self.act(self.drop(normalised))  # pyright: ignore[reportCallIssue]
        return normalised

    def _normalise_spans(self, x: Tensor) -> Tensor:
        if not torch.compiler.is_compiling():
            return self._count_and_normalise(x)
        if self.state.together is not None:  # ranks exchange: a graph break
            apart: Any = torch.compiler.disable(self._count_and_normalise)
            return apart(x)
        if not self.state.is_tracking:
            return self._normalise_each(x, None)
        terms = _begin_pass(self.handle, self.running_mean, x.detach())
        normalised = self._normalise_each(x, terms)
        _end_pass(self.handle, terms)
        return normalised

    def _count_and_normalise(self, x: Tensor) -> Tensor:
        state = self.state
        counts = state.is_tracking and not is_in_backward()
        if counts:
            self._count(x)
        if (together := state.together) is not None:
            affine = (self.weight, self.bias, self.eps)
            normalised, *statistics = normalise_together(x, *affine, together)
            if counts:
                for terms, statistic in zip(self._terms(), statistics, strict=True):
                    terms.mul_(1 - self.momentum)
                    if together.is_first:  # the others have the same span
                        terms.add_(statistic, alpha=self.momentum)
            return normalised
        terms = state.terms if state.is_tracking else None
        if terms is not None and not counts:
            terms = terms.clone()  # discarded; checkpointing needs the same call
        return self._normalise_each(x, terms)

    def begin_pass(self, x: Tensor) -> Tensor:
        """Count a pass of a compiled model; a copy of the terms, for `end_pass`."""
        if not is_in_backward():
            self._count(x)
        return self._terms().clone()

    def end_pass(self, terms: Tensor) -> None:
        """Keep the terms that the pass has added to."""
        if not is_in_backward():
            self._terms().copy_(terms)

    def take_terms(self, end: int) -> Tensor:
        """Return the terms of the spans since the last call, decayed to a later span; forget them.

        They are means, then variances, shape (2 x channels,); `end` is the later span's index in
        the epoch.
        """
        self._decay_terms(end)
        terms = self._terms().flatten().clone()
        self._terms().zero_()
        self.state.counted = self.state.first = 0
        return terms

    def add_terms(self, terms: Tensor, spans: int) -> None:
        """Update the running statistics by a step's sum of what `take_terms` returns."""
        keep = (1 - self.momentum) ** spans
        mean, var = terms.chunk(2)
        self.running_mean.mul_(keep).add_(mean)
        self.running_var.mul_(keep).add_(var)
        if self.num_batches_tracked is not None:
            self.num_batches_tracked += spans

    @property
    def running_statistics(self) -> list[Tensor]:
        """The buffers that training passes lead to."""
        buffers = (self.running_mean, self.running_var, self.num_batches_tracked)
        return [buffer for buffer in buffers if buffer is not None]

    def merge_ranks(self, spans_in_epoch: int, *, keeps_terms: bool = False) -> None:
        """Update the running statistics up to now, equal on all ranks.

        Does nothing if all terms have been taken already.

        Args:
            spans_in_epoch: those that all ranks together saw in the epoch [spans].
            keeps_terms: leave this rank's terms for a later merge, if the update is to be undone.
        """
        state = self.state
        if not state.counted:
            return
        self._check_pass(state.position.moves)
        spans = spans_in_epoch - state.first
        if keeps_terms:
            keep = (1 - self.momentum) ** (spans_in_epoch - state.counted)
            terms = self._terms().flatten() * keep
        else:
            terms = self.take_terms(spans_in_epoch)
        if num_ranks() > 1:
            dist.all_reduce(terms)
        self.add_terms(terms, spans)

    def state_of_terms(self) -> dict[str, Any]:
        """This rank's terms since the last merge, and the span that they are decayed to."""
        keep = 1 - self.momentum
        return {"terms": self._terms().flatten(), "spans": self.state.counted, "keep": keep}

    def load_terms(self, state: dict[str, Any]) -> None:
        """Restore what `state_of_terms` returned."""
        self._terms().copy_(state["terms"].to(self.running_mean).view(2, -1))
        self.state.counted, self.state.counted_pass = state["spans"], None

    def _terms(self) -> Tensor:
        """The terms, on the device and in the type that the running statistics have now."""
        mean, terms = self.running_mean, self.state.terms
        if terms is None:
            terms = torch.zeros_like(mean).expand(2, -1).clone()
        elif terms.device != mean.device or terms.dtype != mean.dtype:
            terms = terms.to(mean)
        self.state.terms = terms
        return terms

    def _count(self, x: Tensor) -> None:
        """Count a pass's spans; ValueError if its rows are not the micro-batch's examples."""
        state, position = self.state, self.state.position
        if position.moves:  # else a loop that only sets the first example
            if state.span * x.shape[2:].numel() == 1:
                self._refuse("together with others; got a single value per channel")
            if len(x) != position.examples:
                rows = f"got shape {tuple(x.shape)} for {position.examples} examples"
                self._refuse(f"as a row of its own; {rows}")
            if state.counted_pass == position.moves:
                self._refuse("once; it was called again in the same pass")
            self._check_pass(position.moves - 1)
            state.counted_pass = position.moves
        self._terms()  # makes them, as the pass adds to `state.terms`
        if state.is_copy and not state.counted:  # a copy may begin within an epoch
            state.first = position.step_start // state.span
        self._decay_terms(position.first_example // state.span)
        state.counted += max(1, len(x) // state.span)

    def _check_pass(self, last: int) -> None:
        """Refuse a layer that was left out since its first pass of the epoch."""
        if self.state.counted and self.state.counted_pass not in {None, last}:
            self._refuse("in every training pass of an epoch; a pass left it out")

    def _refuse(self, how: str) -> NoReturn:
        msg = (
            f"a BatchNorm of bn_span={self.state.span} examples must see each example of the "
            f"micro-batch {how} (a layer of {len(self.running_mean)} channels). Use another model, "
            "or a normalisation without statistics of the batch (GroupNorm, LayerNorm)."
        )
        raise ValueError(msg)

    def _normalise_each(self, x: Tensor, terms: Tensor | None) -> Tensor:
        if len(x) == self.state.span:
            return self._normalise(x, terms)
        return torch.cat([self._normalise(span, terms) for span in x.split(self.state.span)])

    def _normalise(self, x: Tensor, terms: Tensor | None) -> Tensor:
        # not functional.batch_norm, which checks each span's shape again
        mean, var = (None, None) if terms is None else terms
        if not self.training:
            mean, var = self.running_mean, self.running_var
        use_cudnn = torch.backends.cudnn.enabled
        return torch.batch_norm(
            x, self.weight, self.bias, mean, var, self.training, self.momentum, self.eps, use_cudnn
        )

    def _decay_terms(self, span_index: int) -> None:
        """Decay this rank's terms by the spans that other ranks saw in between."""
        if skipped := span_index - self.state.counted:
            self._terms().mul_((1 - self.momentum) ** skipped)
            self.state.counted = span_index


@torch.library.custom_op("sweeper::begin_pass", mutates_args={"handle"})
def _begin_pass(handle: Tensor, mean: Tensor, x: Tensor) -> Tensor:
    del mean
    return layer_of(handle).begin_pass(x)


@_begin_pass.register_fake
def _(handle: Tensor, mean: Tensor, x: Tensor) -> Tensor:
    del handle, x
    return mean.new_empty(2, len(mean))


@torch.library.custom_op("sweeper::end_pass", mutates_args={"handle"})
def _end_pass(handle: Tensor, terms: Tensor) -> None:
    layer_of(handle).end_pass(terms)


def fix_batchnorm_span(
    model: nn.Module, *, span: int, position: StepPosition, together: SyncGroup | None = None
) -> nn.Module:
    """Give every BatchNorm of a model a fixed span, in place; the model is returned.

    All layers share the position, which a callback moves on. ValueError for a BatchNorm that is not
    torch's own, or keeps no running statistics.
    """
    norms: list[nn.Module] = [layer for layer in model.modules() if _is_batchnorm(layer)]
    for layer in norms:
        is_torchs = type(layer).forward in {nn.BatchNorm2d.forward, nn.SyncBatchNorm.forward}
        wrong = ""
        if not isinstance(layer, PlainBatchNorm):
            wrong = "made with its number of channels"
        elif not is_torchs and not _has_activation(type(layer)):
            wrong = "torch's own (or timm's with an activation)"
        elif layer.momentum is None or layer.running_mean is None:
            wrong = "a layer with a momentum and running statistics"
        if wrong:
            msg = (
                f"with bn_span, a BatchNorm must be {wrong}; got {layer} "
                f"({type(layer).__module__}). Replace it in the model."
            )
            raise ValueError(msg)
        state = _Spans(span=span, position=position, together=together)
        # DDP looks for SyncBatchNorm, to refuse it on CPUs
        base = nn.BatchNorm2d if isinstance(layer, nn.SyncBatchNorm) else None
        change_class(layer, GhostBatchNorm, state, base)
        position.add_layer(layer)
    return model


def _is_batchnorm(layer: nn.Module) -> TypeGuard[PlainBatchNorm]:
    if isinstance(layer, GhostBatchNorm):
        return False
    return isinstance(layer, PlainBatchNorm) or lazy_target(layer) in get_args(PlainBatchNorm)


def _has_activation(kind: type[nn.Module]) -> bool:
    """Whether it is a layer of timm's that applies dropout and an activation after normalising."""
    names = {"BatchNormAct2d", "SyncBatchNormAct"}
    return kind.__name__ in names and kind.__module__.startswith("timm.")


def ghost_batchnorms(model: nn.Module) -> Iterator[GhostBatchNorm]:
    """The layers of a model that `fix_batchnorm_span` changed."""
    return (layer for layer in model.modules() if isinstance(layer, GhostBatchNorm))


def track_statistics(model: nn.Module, *, is_on: bool) -> None:
    """Set whether training passes update the running statistics; by default they do."""
    for layer in ghost_batchnorms(model):
        layer.state.is_tracking = is_on
    for layer in model.modules():  # of a user's module
        if _is_batchnorm(layer) and layer.running_mean is not None:
            layer.track_running_stats = is_on
