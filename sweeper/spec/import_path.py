"""Functions of the users' own, found by dotted path."""

import pkgutil
from collections.abc import Callable
from typing import Any


def import_function(dotted: str, key: str) -> Callable[..., Any]:
    """The function that a dotted path names.

    Args:
        dotted: `module.function`; the module's folder is on Python's path.
        key: the config key that holds the path, for the error.

    Raises:
        ValueError: if it cannot be imported or called.
    """
    try:
        found = pkgutil.resolve_name(dotted)
    except (ImportError, AttributeError, ValueError) as error:
        msg = (
            f"{key} must name a function that can be imported; got {key}={dotted!r}: {error}. "
            "Put its folder on PYTHONPATH."
        )
        raise ValueError(msg) from error
    if not callable(found):
        msg = f"{key} must name a function; got {key}={dotted!r}, which cannot be called."
        raise ValueError(msg)
    return found
