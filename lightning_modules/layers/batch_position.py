"""The position of a micro-batch in the run, for layers that must not depend on the layout."""

import weakref
from typing import Any

from torch import nn


class StepPosition:
    """Moved on before each training pass; shared by the layers of a model and by their copies.

    Epoch and step of the epoch are 0-based. `first_example` is the micro-batch's place in the
    epoch's order, in which its `examples` are consecutive, and `step_start` that of its step's
    first example. During validation, `examples` is 0. `moves` counts micro-batches so far.
    """

    def __init__(self) -> None:
        self.epoch = self.step = self.step_start = self.first_example = 0
        self.examples = self.moves = self._joined = 0
        self._layers = weakref.WeakValueDictionary[int, nn.Module]()

    def move(
        self, *, epoch: int, step: int, first_example: int, examples: int, step_start: int = 0
    ) -> None:
        """Go to a micro-batch."""
        self.epoch, self.step, self.step_start = epoch, step, step_start
        self.first_example, self.examples = first_example, examples
        self.moves += 1

    def add_layer(self, layer: nn.Module) -> None:
        """Remember a layer that keeps statistics, without keeping it alive."""
        self._layers[self._joined] = layer
        self._joined += 1

    @property
    def layers(self) -> list[Any]:
        """The layers that keep statistics, oldest first; a copy may be no part of the module."""
        return [layer for _, layer in sorted(self._layers.items(), key=lambda item: item[0])]
