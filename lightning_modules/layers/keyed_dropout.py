"""Dropout with masks keyed by example, the same on every layout.

A draw is a function of (seed, layer, call, epoch, place of the example in the epoch's order), so a
mask is the same in every micro-batch, on every rank and after every resume.

A user's module may also apply dropout to rows that do not divide evenly among the examples, such as
the nodes of graphs, and in validation: there torch draws, from generators seeded for the batch.
"""

from enum import Enum
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.ops import StochasticDepth

from lightning_modules.data.randomness import counter_bits, stream_of
from lightning_modules.layers.position import StepPosition, is_in_backward
from lightning_modules.layers.replace import replace_layers


class Unit(Enum):
    """What is dropped as a whole: the number of leading dimensions that have draws of their own."""

    STEP = 0
    ROW = 1
    CHANNEL = 2
    VALUE = None


class KeyedDropout(nn.Module):
    """Sets parts of the activations to a floor, by draws keyed by their examples.

    The probability has a resolution of ``2 ** -32``. `stream` is the run's seed and the index of
    the layer. Dropped values become `floor`: 0, or SELU's for alpha dropout. Rescaling keeps the
    mean (and, with a floor, the variance) of the input.

    Source:
        Srivastava et al. 2014, JMLR 15, for values; Tompson et al. 2015, arXiv:1411.4280, for
        channels; Klambauer et al. 2017, arXiv:1706.02515, for alpha dropout; Huang et al. 2016,
        arXiv:1603.09382, for rows and steps (stochastic depth).
    """

    def __init__(
        self,
        p: float,
        *,
        unit: Unit,
        stream: tuple[int, int],
        position: StepPosition,
        floor: float = 0.0,
        is_rescaled: bool = True,
        stands_for: type[nn.Module] | None = None,
        is_strict: bool = True,
    ) -> None:
        super().__init__()
        self.p, self._unit, self._floor = p, unit, floor
        self._stream, self._position = stream, position
        self._is_rescaled, self._is_strict = is_rescaled, is_strict
        self._stands_for = stands_for or type(self)
        self._seen, self._calls = -1, 0

    @property
    def __class__(self) -> type:  # type: ignore[override]
        """The replaced layer's class, for `isinstance`: a module may look for its dropout."""
        return self._stands_for

    def forward(self, x: Tensor) -> Tensor:
        """Same shape as x, whose first dimension is that of the examples; x in evaluation."""
        if not self.training:
            return x
        drawn = x.shape[: self._unit.value]
        kept = self._kept(x, drawn).reshape(*drawn, *[1] * (x.ndim - len(drawn)))
        scale = self._scale()
        scaled = torch.where(kept, x, self._floor) * scale
        return scaled - scale * self._floor * self.p if self._floor else scaled

    def _scale(self) -> float:
        """The factor on kept values; a module may change `p` as it trains."""
        if not self._is_rescaled or self.p >= 1:
            return 1.0
        spread = 1 + self.p * self._floor**2
        return ((1 - self.p) * spread) ** (-0.5 if self._floor else -1.0)

    def _kept(self, x: Tensor, drawn: torch.Size) -> Tensor:
        position = self._position
        if self._unit is Unit.STEP:
            owners, per_owner, first = 1, 1, position.step
        elif not self._is_strict and (not position.examples or len(x) % position.examples):
            return torch.rand(drawn, device=x.device) >= self.p
        else:
            _check_examples(x, position.examples)
            owners, first = position.examples, position.first_example
            per_owner = drawn.numel() // owners
        stream = stream_of(*self._stream, self._call(), position.epoch)
        words = (per_owner + 1) // 2  # of 64 bits, for two draws each
        bits = counter_bits(stream, first * words, owners * words, x.device)
        draws = bits.view(torch.int32).view(owners, 2 * words)[:, :per_owner]
        return draws >= min(round(self.p * 2**32) - 2**31, 2**31 - 1)

    def _call(self) -> int:
        """How often the layer has been called in the passes over this micro-batch."""
        if is_in_backward():
            msg = (
                "dropout must be drawn once for each micro-batch; it was called again in a "
                "backward pass, as activation checkpointing does. Disable checkpointing, or set "
                "the dropout to 0 (of our classifier: in model.settings)."
            )
            raise ValueError(msg)
        if self._seen != self._position.moves:
            self._seen, self._calls = self._position.moves, 0
        self._calls += 1
        return self._calls


def key_dropout(
    model: nn.Module, *, seed: int, position: StepPosition, is_strict: bool = True
) -> nn.Module:
    """Replace every dropout layer of a model, in place where possible, by a keyed one.

    Layers that drop nothing are kept; so are kinds that are not known here, which `StrayDraws`
    detects, and layers keyed by an earlier call, as a model may have gained layers since. All
    layers share the position, which a callback moves on. For a model that is itself a dropout
    layer, the new layer is returned.

    Args:
        model: whose layers are replaced.
        seed: the run's.
        position: of the micro-batch.
        is_strict: refuse activations whose rows are not those of the examples.
    """
    layers = count(sum(isinstance(layer, KeyedDropout) for layer in model.modules()))

    def keyed(layer: nn.Module) -> nn.Module | None:
        settings = _settings(layer)
        if settings is None:
            return None
        return KeyedDropout(
            **settings,
            stream=(seed, next(layers)),
            position=position,
            stands_for=type(layer),
            is_strict=is_strict,
        )

    return replace_layers(model, keyed)


class StrayDraws:
    """Detects later draws from torch's own generator, which depend on the layout."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._before = device, _generator_state(device)

    def refuse(self, model: nn.Module) -> None:
        """Refuse a model that has drawn since.

        Raises:
            ValueError: names what may have drawn.
        """
        if torch.equal(self._before, _generator_state(self._device)):
            return
        known = drawing_layers(model)
        culprits = f" It has {', '.join(known)}." if known else ""
        msg = (
            "the model must draw at random only in dropout layers (torch.nn's, torchvision's "
            "StochasticDepth, timm's DropPath), so that the layout does not change its masks; its "
            f"training pass drew from torch's generator.{culprits} Set such dropout to 0 in "
            "model.settings, or write it as a layer instead of a function."
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


def _settings(layer: nn.Module) -> dict[str, Any] | None:
    """Settings of a layer's keyed counterpart; None if it has none or drops nothing."""
    kind = type(layer)  # exactly: a subclass may do something else
    if kind in _KINDS and layer.p:
        unit, floor = _KINDS[kind]
        return {"p": layer.p, "unit": unit, "floor": floor}
    if kind is StochasticDepth and layer.p:
        return {"p": layer.p, "unit": Unit.ROW if layer.mode == "row" else Unit.STEP}
    if kind.__name__ == "DropPath" and kind.__module__.startswith("timm.") and layer.drop_prob:
        return {"p": layer.drop_prob, "unit": Unit.ROW, "is_rescaled": layer.scale_by_keep}
    return None


def _check_examples(x: Tensor, examples: int) -> None:
    if len(x) % examples:
        msg = (
            "dropout must act on activations with the examples in their first dimension; got shape "
            f"{tuple(x.shape)} for a micro-batch of {examples} examples. Put the examples first "
            "(batch_first=True), or set the dropout to 0 in model.settings."
        )
        raise ValueError(msg)


def _generator_state(device: torch.device) -> Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()
