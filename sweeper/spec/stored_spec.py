"""Runs whose config was written down, perhaps by an earlier version of this code."""

from collections.abc import Mapping
from typing import Any

from sweeper.spec.identity import INCIDENTAL, SCIENTIFIC
from sweeper.spec.run_spec import RunSpec, run_spec

#: What is off is null, but for these.
_OFF = {"no_decay_on_norm_and_bias": False, "zero_init_last_norm": False}


def stored_run_spec(config: Mapping[str, Any]) -> RunSpec:
    """The run of a written config; a key that its writer did not know yet is off.

    Args:
        config: as a queue's ticket or an attempt's folder keeps it.

    Raises:
        ValueError: if this version cannot make a run of it.
    """
    unknown_then = sorted((SCIENTIFIC | INCIDENTAL) - set(config))
    try:
        return run_spec({**dict.fromkeys(unknown_then), **_OFF, **config})
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        what = f"it lacks {', '.join(unknown_then)}" if unknown_then else str(error)
        msg = (
            "a config that was written down must be one that this version of sweeper knows; got "
            f"one of another version ({what}). Repeat the command with this version, or go on "
            "with that one."
        )
        raise ValueError(msg) from error
