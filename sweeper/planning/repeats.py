"""Points of a grid that have the same run id although they ask for different things."""

from collections.abc import Mapping
from typing import Any


def check_repeat(first: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    """Refuse two points with the same run id whose data folders or models differ.

    Args:
        first: the resolved config of a point.
        other: the resolved config of another point with the same run id.

    Raises:
        ValueError: for two data folders, or for two models with a module that reads neither.
    """
    roots = [config["data"].get("root") for config in (first, other)]
    if roots[0] != roots[1]:
        msg = (
            "data.root must be one folder in a grid, as it says where the files are and does not "
            f"distinguish runs; got {roots[0]} and {roots[1]}. If the data differ, set a key that "
            "says so, such as data.name, or use a results folder for each."
        )
        raise ValueError(msg)
    if first.get("model") != other.get("model"):
        msg = (
            "model can be swept with module=classifier only, which reads it; got two models with "
            f"module._target_={first['module']['_target_']}. Remove model, or make it a setting of "
            "your module: +module.KEY=A,B."
        )
        raise ValueError(msg)
