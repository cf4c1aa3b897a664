"""Calling a function after a hook of a LightningModule."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from pytorch_lightning import LightningModule


def after_hook(module: LightningModule, name: str, then: Callable[[], None]) -> None:
    """Have a function called after a hook of a module.

    Args:
        module: the module.
        name: of the hook; after `setup` all layers exist, and no checkpoint is loaded yet.
        then: the function.
    """
    own = getattr(module, name)

    @wraps(own)
    def both(*given: Any, **named: Any) -> None:
        own(*given, **named)
        then()

    setattr(module, name, both)
