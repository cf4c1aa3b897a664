"""Objects from components of a config: a class or function, and its keyword arguments."""

import pkgutil
from typing import Any

from sweeper.spec.config import Component


def build(component: Component, *args: Any, **more: Any) -> Any:
    """The object that a component describes.

    Args:
        component: the dotted path of a class or function, and its keyword arguments.
        args: positional arguments, given first.
        more: keyword arguments beside those of the component.

    Raises:
        ValueError: if the target cannot be imported or does not take these arguments.
    """
    return call(component.target, *args, **component.settings, **more)


def call(target: str, *args: Any, **settings: Any) -> Any:
    """Call a class or function, named by its dotted path, with these arguments.

    Raises:
        ValueError: if it cannot be imported or does not take them.
    """
    made = _resolve(target)
    try:
        return made(*args, **settings)
    except TypeError as error:
        msg = f"{target} must accept the settings in its config; got {settings}: {error}."
        raise ValueError(msg) from error


def _resolve(target: str) -> Any:
    try:
        return pkgutil.resolve_name(target)
    except (ImportError, AttributeError, ValueError) as error:
        msg = (
            f"_target_ must name something that can be imported; got _target_={target!r}: {error}. "
            "Install its package or put its folder on PYTHONPATH."
        )
        raise ValueError(msg) from error
