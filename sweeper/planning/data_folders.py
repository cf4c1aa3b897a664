"""Folders of data within one grid: where files lie is no difference between runs."""

from collections.abc import Mapping
from typing import Any


def check_root(first: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    """Refuse two data sets that the grid tells apart by their folders alone."""
    if first.get("root") != other.get("root"):
        msg = (
            "data.root must be one folder in a grid, as it says where the files lie and runs do "
            f"not differ by it; got {first.get('root')} and {other.get('root')}. Give data that "
            "differ a key that says so, such as data.name, or a results folder each."
        )
        raise ValueError(msg)
