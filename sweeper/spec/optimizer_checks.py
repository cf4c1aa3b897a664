"""Checks of the settings of conf/'s optimizers: torch accepts momenta that always diverge."""

import math
from collections.abc import Callable
from typing import Any

from sweeper.spec.config import Optimizer, is_ours

_TORCHS = "torch.optim."


def check_optimizer(optimizer: Optimizer) -> None:
    """Refuse a setting that cannot be intended; a user's own optimizer checks its own.

    Raises:
        ValueError: with a rule, the value and a remedy.
    """
    if "lr" in optimizer.settings:
        msg = (
            "optimizer.lr must be left to the run, which sets it at each step; got "
            f"optimizer.lr={optimizer.settings['lr']!r}. Set base_lr, the rate at base_batch."
        )
        raise ValueError(msg)
    if not (is_ours(optimizer.target) or optimizer.target.startswith(_TORCHS)):
        return
    for key, value in optimizer.settings.items():
        if key == "betas":
            _check_betas(value, 3 if optimizer.target.endswith(".vr_lamb") else 2)
        elif key in _RULES and not _RULES[key][0](value):
            msg = (
                f"optimizer.{key} must be {_RULES[key][1]}; got optimizer.{key}={value!r}. "
                "Change it."
            )
            raise ValueError(msg)


def _check_betas(value: Any, count: int) -> None:
    if isinstance(value, list | tuple) and len(value) == count and all(map(_is_fraction, value)):
        return
    msg = (
        f"optimizer.betas must be {count} numbers from 0 to below 1; got optimizer.betas="
        f"{value!r}. Change them."
    )
    raise ValueError(msg)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf


def _is_fraction(value: Any) -> bool:
    return _is_number(value) and 0 <= value < 1


def _is_not_negative(value: Any) -> bool:
    return _is_number(value) and value >= 0


_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "momentum": (_is_fraction, "a number from 0 to below 1"),
    "weight_decay": (_is_not_negative, "a number, 0 or more"),
    "eps": (_is_not_negative, "a number, 0 or more"),
    "trust_coeff": (lambda value: _is_number(value) and value > 0, "a number above 0"),
    "floor": (lambda value: _is_number(value) and 0 <= value <= 1, "a number from 0 to 1"),
    **{
        key: (lambda value: isinstance(value, bool), "true or false")
        for key in ("nesterov", "trust_clip", "bias_correction")
    },
    "max_grad_norm": (
        lambda value: value is None or (_is_number(value) and value > 0),
        "a number above 0, or null",
    ),
}
