"""How far two checkpoints of the same run differ."""

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

#: A tensor's size is at least this fraction of the usual size of the model's tensors.
_FLOOR = 1e-3


def relative_differences(checkpoints: Sequence[Path]) -> list[tuple[float, str]]:
    """Largest difference of each checkpoint's model from the first model; 0 for the first.

    The maximum over the tensors of the model's state, running statistics included, and the name of
    that tensor; relative to the largest magnitude in the first checkpoint's tensor, or to
    a thousandth of the median of these over tensors, since a tensor may be 0 up to rounding.
    Infinite where only either is NaN.
    """
    first, *others = (_load_state(path) for path in checkpoints)
    values = {  # a state may also hold counts, or any object
        name: value.double()
        for name, value in first.items()
        if isinstance(value, Tensor) and value.is_floating_point() and value.numel()
    }
    magnitudes = {
        name: float(value[value.isfinite()].abs().amax()) if value.isfinite().any() else 0.0
        for name, value in values.items()
    }
    floor = _FLOOR * median([m for m in magnitudes.values() if m] or [1.0])
    differences = [(0.0, "")]
    for other in others:
        assert first.keys() == other.keys()
        largest = (0.0, "")
        for name, before in values.items():
            after = other[name].double()
            if not torch.allclose(before, after, rtol=0, atol=0, equal_nan=True):
                difference = float((before - after).abs().max()) / max(magnitudes[name], floor)
                largest = max(largest, (math.inf if math.isnan(difference) else difference, name))
        differences.append(largest)
    return differences


def has_batchnorm(checkpoint: Path) -> bool:
    """Whether the model keeps running statistics."""
    return any(name.endswith("running_var") for name in _load_state(checkpoint))


def _load_state(path: Path) -> dict[str, Any]:
    # A user's module may add any object to its checkpoints; these were just made here.
    return torch.load(path, map_location="cpu", weights_only=False)["state_dict"]
