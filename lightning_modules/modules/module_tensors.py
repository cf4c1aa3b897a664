"""Parameters and buffers of a module, and what they were before."""

from collections.abc import Iterator

from torch import Tensor, nn


def named_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers, by name."""
    yield from module.named_parameters()
    yield from module.named_buffers()


def clone_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Copies of parameters and buffers, by name."""
    return {name: tensor.detach().clone() for name, tensor in named_tensors(module)}
