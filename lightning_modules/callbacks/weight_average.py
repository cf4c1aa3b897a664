"""An exponential moving average of the weights, evaluated instead of them."""

from collections.abc import Generator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from lightning_modules.gradients.flat_weights import flattened, set_weights


class WeightAverage(nn.Module):
    """``average <- decay average + (1 - decay) weights`` after each step, from the initial weights.

    BatchNorm's running statistics are not averaged: evaluation uses the current ones.

    Args:
        model: whose parameters are averaged.
        decay: per optimizer step, whatever its batch [dimensionless].
    """

    average: Tensor

    def __init__(self, model: nn.Module, *, decay: float) -> None:
        super().__init__()
        self.decay = decay
        self.register_buffer("average", flattened(model))

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Take in the weights after a step."""
        self.average.lerp_(flattened(model), 1 - self.decay)

    @contextmanager
    def applied(self, model: nn.Module) -> Generator[None, None, None]:
        """The model has the average for weights inside of the block."""
        with torch.no_grad():
            own = flattened(model)
            set_weights(model, self.average)
            try:
                yield
            finally:
                set_weights(model, own)
