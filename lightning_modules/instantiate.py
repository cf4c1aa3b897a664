"""Objects from config nodes: `_target_` names a class, the other keys are its arguments."""

import importlib
from collections.abc import Mapping
from typing import Any


def build(node: Mapping[str, Any], *args: Any) -> Any:
    """The object that a node describes.

    Args:
        node: a mapping with `_target_`, the dotted path of a class or function, and its keyword
            arguments; `about` is for readers and left out.
        args: positional arguments, given first.

    Raises:
        ValueError: if the target cannot be imported or does not take these arguments.
    """
    target = _imported(node["_target_"])
    settings = {key: value for key, value in node.items() if key not in {"_target_", "about"}}
    try:
        return target(*args, **settings)
    except TypeError as error:
        msg = f"{node['_target_']} must take the settings in its config; got {settings}: {error}."
        raise ValueError(msg) from error


def _imported(dotted: str) -> Any:
    module_name, _, name = dotted.rpartition(".")
    try:
        return getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError, ValueError) as error:
        msg = (
            f"_target_ must name something that can be imported; got _target_={dotted!r}: {error}. "
            "Install its package or put its folder on PYTHONPATH."
        )
        raise ValueError(msg) from error
