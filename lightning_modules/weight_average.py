"""An exponential moving average of the weights, evaluated instead of them."""

from collections.abc import Generator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


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
        now = nn.utils.parameters_to_vector(model.parameters()).detach()
        self.register_buffer("average", now.clone())

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Take in the weights after a step."""
        now = nn.utils.parameters_to_vector(model.parameters())
        self.average.lerp_(now, 1 - self.decay)

    @contextmanager
    def applied(self, model: nn.Module) -> Generator[None, None, None]:
        """The model has the average for weights inside of the block."""
        with torch.no_grad():
            own = nn.utils.parameters_to_vector(model.parameters()).clone()
            _write(model, self.average)
            try:
                yield
            finally:
                _write(model, own)


def _write(model: nn.Module, vector: Tensor) -> None:
    """Set the parameters in place, each in its own memory format."""
    parameters = list(model.parameters())
    for parameter, part in zip(
        parameters, vector.split([p.numel() for p in parameters]), strict=True
    ):
        parameter.copy_(part.view(parameter.shape))
