"""How far two checkpoints differ, whatever their states hold."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_modules.modules.checkpoint_diff import relative_differences

WEIGHT = torch.tensor([1.0, -4.0])
NOTHING = torch.tensor([3e-13])  # a gradient of rounding only, as of a key's bias
MASK = torch.tensor([0.0, -math.inf])


@pytest.mark.parametrize(
    ("first", "other", "difference"),
    [
        ({"mask": MASK, "weight": WEIGHT}, {"mask": MASK, "weight": WEIGHT + 1}, 0.25),
        ({"weight": WEIGHT, "mask": MASK}, {"weight": WEIGHT, "mask": MASK}, 0.0),
        ({"weight": WEIGHT, "b": WEIGHT}, {"weight": WEIGHT, "b": WEIGHT * math.nan}, math.inf),
        ({"b": WEIGHT * math.nan, "weight": WEIGHT}, {"b": WEIGHT, "weight": WEIGHT}, math.inf),
        ({"weight": WEIGHT, "_extra_state": "a"}, {"weight": WEIGHT, "_extra_state": "b"}, 0.0),
        (
            {"weight": WEIGHT, "nothing": NOTHING},
            {"weight": WEIGHT, "nothing": 2 * NOTHING},
            1.5e-10,
        ),
        ({"count": torch.tensor(3)}, {"count": torch.tensor(4)}, 0.0),
    ],
)
def test_a_mask_of_infinities_hides_no_difference_and_nan_is_one(
    first: dict[str, Any], other: dict[str, Any], difference: float, tmp_path: Path
) -> None:
    paths = [tmp_path / "first.ckpt", tmp_path / "other.ckpt"]
    for path, state in zip(paths, (first, other), strict=True):
        torch.save({"state_dict": state}, path)
    _, (found, name) = relative_differences(paths)
    assert found == pytest.approx(difference, rel=1e-6)
    assert name == next((key for key in ("nothing", "b", "weight") if key in first and found), "")
