"""How far two checkpoints of the same run differ."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


def relative_differences(checkpoints: Sequence[Path]) -> list[float]:
    """Largest difference of each checkpoint's model from the first model; 0 for the first.

    The maximum over the tensors of the model's state, running statistics included; relative to the
    largest magnitude in the first checkpoint's tensor; infinite where only either is NaN.
    """
    first, *others = (_load_state(path) for path in checkpoints)
    differences = [0.0]
    for other in others:
        assert first.keys() == other.keys()
        largest = 0.0
        for name, value in first.items():
            # a state may also hold counts, or any object
            if not (isinstance(value, Tensor) and value.is_floating_point() and value.numel()):
                continue
            before, after = value.double(), other[name].double()
            if not torch.allclose(before, after, rtol=0, atol=0, equal_nan=True):
                finite = before[before.isfinite()].abs()
                magnitude = float(finite.max()) if len(finite) else 0.0
                difference = float((before - after).abs().max()) / max(magnitude, 1e-300)
                largest = max(largest, math.inf if math.isnan(difference) else difference)
        differences.append(largest)
    return differences


def has_batchnorm(checkpoint: Path) -> bool:
    """Whether the model keeps running statistics."""
    return any(name.endswith("running_var") for name in _load_state(checkpoint))


def _load_state(path: Path) -> dict[str, Any]:
    # A user's module may add any object to its checkpoints; these were just made here.
    return torch.load(path, map_location="cpu", weights_only=False)["state_dict"]
