"""Dropout with masks keyed by example, the same on every layout.

A draw is a function of (seed, layer, call, epoch, place of the example in the epoch's order), so a
mask is the same in every micro-batch, on every rank, after every resume, and where activation
checkpointing repeats a forward pass.

A user's module may also apply dropout to rows that do not divide evenly among the examples, such as
the nodes of graphs, and in validation: there torch draws, from generators seeded for the batch.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

import torch
from torch import Tensor, nn
from torchvision.ops import StochasticDepth

from lightning_modules.data.randomness import counter_bits, draw_stream
from lightning_modules.layers.batch_position import StepPosition
from lightning_modules.layers.run_layer import RunLayer, change_class, layer_of
from sweeper.upstream.torchs import backward_task


class Unit(Enum):
    """What is dropped as a whole: the number of leading dimensions that have draws of their own."""

    STEP = 0
    ROW = 1
    CHANNEL = 2
    VALUE = None


@dataclass(slots=True, kw_only=True)
class _Draws:
    """What a run keeps for a dropout layer."""

    unit: Unit  # what is dropped as a whole
    floor: float  # the value of what is dropped
    #: The run's seed, the index of the layer, and a 0 more for each time it was copied, so that a
    #: copy has masks of its own.
    stream: tuple[int, ...]
    position: StepPosition  # of the micro-batch
    is_strict: bool  # refuse activations whose rows are not those of the examples
    seen: int = -1  # the last micro-batch
    calls: int = 0  # how often the layer was called in it
    #: Activation checkpointing repeats calls, of those after the first `before`: the part of the
    #: backward pass that does, and how many it has repeated.
    task: tuple[int, int] | None = None
    before: int = 0
    repeated: int = 0

    def check_repeated(self) -> None:
        """Refuse calls of which a checkpointed part repeated only some: which, is not known."""
        if self.task is not None and self.repeated != self.calls - self.before:
            msg = (
                "a dropout layer that is called several times in a pass must have all of its calls "
                f"in one part under activation checkpointing; got {self.calls - self.before} "
                f"calls, {self.repeated} of them in a part. Give each call a layer of its own."
            )
            raise ValueError(msg)

    def copy_state(self, layer: nn.Module) -> "_Draws":
        """For a copy of the layer."""
        del layer
        return replace(self, stream=(*self.stream, 0), seen=-1, calls=0, task=None)


class KeyedDropout(RunLayer):
    """Sets parts of the activations to a floor, by draws keyed by their examples.

    The probability has a resolution of ``2 ** -32``. Dropped values become the floor: 0, or SELU's
    for alpha dropout. Rescaling keeps the mean (and, with a floor, the variance) of the input.

    Source:
        Srivastava et al. 2014, JMLR 15, for values; Tompson et al. 2015, arXiv:1411.4280, for
        channels; Klambauer et al. 2017, arXiv:1706.02515, for alpha dropout; Huang et al. 2016,
        arXiv:1603.09382, for rows and steps (stochastic depth).
    """

    state: _Draws

    def forward(self, x: Tensor) -> Tensor:
        """Same shape as x, whose first dimension is that of the examples; x in evaluation."""
        # timm has another name for the probability that something is dropped
        p = float(getattr(self, "drop_prob" if hasattr(self, "drop_prob") else "p") or 0.0)
        if not (self.training and p):
            return x
        unit, floor = self.state.unit, self.state.floor
        drawn = x.shape[: unit.value]
        is_compiled = torch.compiler.is_compiling()
        kept = (
            _draw_in_order(self.handle, drawn, p, x.device)
            if is_compiled
            else self.draw_kept(drawn, p, x.device)
        ).reshape(*drawn, *[1] * (x.ndim - len(drawn)))
        scale = 1.0  # of kept values; a module may change `p` as it trains
        if p < 1 and getattr(self, "scale_by_keep", True):
            scale = ((1 - p) * (1 + p * floor**2)) ** (-0.5 if floor else -1.0)
        scaled = torch.where(kept, x, floor) * scale
        return scaled - scale * floor * p if floor else scaled

    def draw_kept(self, drawn: Sequence[int], p: float, device: torch.device) -> Tensor:
        """Whether each unit is kept, in the shape of the units."""
        state, position = self.state, self.state.position
        if state.unit is Unit.STEP:
            owners, per_owner, first = 1, 1, position.step
        elif not state.is_strict and (not position.examples or drawn[0] % position.examples):
            return torch.rand(tuple(drawn), device=device) >= p
        else:
            if drawn[0] % position.examples:
                msg = (
                    "dropout must act on activations with the examples in their first dimension; "
                    f"got shape {tuple(drawn)} for a micro-batch of {position.examples} "
                    "examples. Put the examples first (batch_first=True), with padded positions "
                    "left in, or set the dropout to 0."
                )
                raise ValueError(msg)
            owners, first = position.examples, position.first_example
            per_owner = math.prod(drawn) // owners
        stream = draw_stream(*state.stream, self._count_call(), position.epoch)
        words = (per_owner + 1) // 2  # of 64 bits, for two draws each
        bits = counter_bits(stream, first * words, owners * words, device)
        draws = bits.view(torch.int32).view(owners, 2 * words)[:, :per_owner]
        kept = draws >= min(round(p * 2**32) - 2**31, 2**31 - 1)  # draws are signed
        return kept.reshape(tuple(drawn))

    def _count_call(self) -> int:
        """Which of the layer's calls over this micro-batch this is; a repeated one is the same."""
        state = self.state
        if (task := backward_task()) is not None:
            if task != state.task:  # another part of the model is repeated
                state.check_repeated()
                state.task, state.repeated = task, 0
            state.repeated = state.repeated % (state.calls - state.before) + 1
            return state.before + state.repeated
        if state.seen != state.position.moves:
            state.check_repeated()
            state.seen, state.calls, state.task, state.before = state.position.moves, 0, None, 0
        elif state.task is not None:  # a second pass over the micro-batch, as SAM's
            state.check_repeated()
            state.task, state.before = None, state.calls
        state.calls += 1
        return state.calls


@torch.library.custom_op("sweeper::draw_kept", mutates_args={"handle"})
def _draw_in_order(handle: Tensor, drawn: Sequence[int], p: float, device: torch.device) -> Tensor:
    return layer_of(handle).draw_kept(drawn, p, device)


@_draw_in_order.register_fake
def _(handle: Tensor, drawn: Sequence[int], p: float, device: torch.device) -> Tensor:
    del handle, p
    return torch.empty(tuple(drawn), dtype=torch.bool, device=device)


def key_dropout(
    model: nn.Module, *, seed: int, position: StepPosition, is_strict: bool = True
) -> nn.Module:
    """Have every dropout layer of a model draw by example, in place; the model is returned.

    Kinds that are not known here are left alone, and `check_draws` finds their draws. Layers that
    an earlier call has changed keep their draws, as a model may have gained layers since. All
    layers share the position, which a callback moves on. If strict, activations whose rows are not
    those of the examples are refused.
    """
    known = sum(isinstance(layer, KeyedDropout) for layer in model.modules())
    for layer in list(model.modules()):
        if (dropped := _unit_and_floor(layer)) is not None:
            unit, floor = dropped
            state = _Draws(
                unit=unit, floor=floor, stream=(seed, known), position=position, is_strict=is_strict
            )
            change_class(layer, KeyedDropout, state)
            known += 1
    return model


def generator_state(device: torch.device) -> Tensor:
    """The state of torch's own generator for a device."""
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def check_draws(model: nn.Module, before: Tensor, device: torch.device) -> None:
    """Refuse a model whose forward pass has drawn from torch's generator, as layouts would differ.

    `before` is the generator's state before the pass. ValueError names what may have drawn.
    """
    if torch.equal(before, generator_state(device)):
        return
    known = drawing_layers(model)
    culprits = f" It has {', '.join(known)}." if known else ""
    msg = (
        "the model must draw at random only in dropout layers (torch.nn's, torchvision's "
        "StochasticDepth, timm's DropPath), so that the layout does not change its masks; its "
        f"training pass drew from torch's generator.{culprits} Set such dropout to 0 by a setting "
        "of the model (of timm's and torchvision's: in model.settings), or write it as a layer "
        "instead of a function."
    )
    raise ValueError(msg)


def drawing_layers(model: nn.Module) -> list[str]:
    """Layers that are known to draw, and have no keyed counterpart."""
    return [
        f"{name} (MultiheadAttention, dropout={layer.dropout:g})"
        for name, layer in model.named_modules()
        if isinstance(layer, nn.MultiheadAttention) and layer.dropout
    ]


_SELU_FLOOR = -1.7580993408473766  # minus SELU's scale times its alpha
_KINDS: dict[type[nn.Module], tuple[Unit, float]] = {
    nn.Dropout: (Unit.VALUE, 0.0),
    nn.Dropout1d: (Unit.CHANNEL, 0.0),
    nn.Dropout2d: (Unit.CHANNEL, 0.0),
    nn.Dropout3d: (Unit.CHANNEL, 0.0),
    nn.AlphaDropout: (Unit.VALUE, _SELU_FLOOR),
    nn.FeatureAlphaDropout: (Unit.CHANNEL, _SELU_FLOOR),
}


def _unit_and_floor(layer: nn.Module) -> tuple[Unit, float] | None:
    """What a layer drops, and what it sets that to; None if it is no dropout layer known here."""
    kind = type(layer)  # exactly: a subclass may do something else
    if kind in _KINDS:
        return _KINDS[kind]
    if kind is StochasticDepth:
        return (Unit.ROW if layer.mode == "row" else Unit.STEP), 0.0
    if kind.__name__ == "DropPath" and kind.__module__.startswith("timm."):
        return Unit.ROW, 0.0
    return None
