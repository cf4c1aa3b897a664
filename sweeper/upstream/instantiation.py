"""Hydra's instantiation, of what the user's own command names."""

from typing import Any

from hydra import utils

#: From 1.4 on, Hydra asks what may be called: whatever the command names (docs/security.md).
_ANYTHING = getattr(utils, "UNSAFE_DISABLE_EXECUTION_CHECKS", None)


def instantiate(config: Any) -> Any:
    """The object that a config describes, as `hydra.utils.instantiate` makes it."""
    checks = {"_execution_whitelist_": _ANYTHING} if _ANYTHING else {}
    return utils.instantiate(config, **checks)
