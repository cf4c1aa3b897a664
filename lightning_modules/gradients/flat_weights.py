"""All weights of a model as one vector, and back."""

import torch
from torch import Tensor, nn


def flattened(model: nn.Module) -> Tensor:
    """A copy of all parameters, one after the other, shape (parameters,)."""
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


def unflattened(model: nn.Module, vector: Tensor) -> dict[str, Tensor]:
    """The parts of a vector in the names and shapes of a model's parameters."""
    named = dict(model.named_parameters())
    parts = vector.split([parameter.numel() for parameter in named.values()])
    return {
        name: part.view(parameter.shape)
        for (name, parameter), part in zip(named.items(), parts, strict=True)
    }


def set_weights(model: nn.Module, vector: Tensor) -> None:
    """Set the parameters in place, each in its own memory format."""
    for name, part in unflattened(model, vector).items():
        model.get_parameter(name).copy_(part)
