"""How far two checkpoints of the same run differ."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor


def relative_differences(checkpoints: Sequence[Path]) -> list[float]:
    """Largest difference of each checkpoint's model from the first one's; 0 for the first.

    Of each tensor of the model's state, running statistics included, relative to the largest
    magnitude in the first checkpoint's tensor.
    """
    first, *others = (_state(path) for path in checkpoints)
    return [0.0, *(_difference(first, other) for other in others)]


def has_batchnorm(checkpoint: Path) -> bool:
    """Whether the model keeps running statistics."""
    return any(name.endswith("running_var") for name in _state(checkpoint))


def _state(path: Path) -> dict[str, Tensor]:
    # A user's module may add any object to its checkpoints; this one was just made here.
    return torch.load(path, map_location="cpu", weights_only=False)["state_dict"]


def _difference(first: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    assert first.keys() == other.keys()
    return max(
        float((first[name].double() - other[name].double()).abs().max())
        / max(float(first[name].double().abs().max()), 1e-300)
        for name in first
        if first[name].is_floating_point() and first[name].numel()
    )
