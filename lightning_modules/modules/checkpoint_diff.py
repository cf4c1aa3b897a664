"""How far two checkpoints of the same run differ."""

import math
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor


def relative_differences(checkpoints: Sequence[Path]) -> list[float]:
    """Largest difference of each checkpoint's model from the first one's; 0 for the first.

    The maximum over the tensors of the model's state, running statistics included; relative to the
    largest magnitude in the first checkpoint's tensor; infinite where only one of the two is NaN.
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
    pairs = [(value, other[name]) for name, value in first.items() if _is_compared(value)]
    return max((_apart(one, two) for one, two in pairs), default=0.0)


def _is_compared(value: object) -> bool:
    """Whether it is a tensor of real numbers; a state may also hold counts, or any object."""
    return isinstance(value, Tensor) and value.is_floating_point() and value.numel() > 0


def _apart(first: Tensor, other: Tensor) -> float:
    """Largest difference relative to the largest finite magnitude; infinite for a NaN in one."""
    first, other = first.double(), other.double()
    if torch.allclose(first, other, rtol=0, atol=0, equal_nan=True):
        return 0.0
    magnitude = float(first[first.isfinite()].abs().max()) if first.isfinite().any() else 0.0
    largest = float((first - other).abs().max()) / max(magnitude, 1e-300)
    return math.inf if math.isnan(largest) else largest
