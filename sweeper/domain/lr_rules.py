"""Learning-rate rules: how the peak rate follows the global batch. Pure functions of the ratio."""

import math
from collections.abc import Callable, Mapping
from typing import Any

Rule = Callable[[float], float]


def none(batch_ratio: float) -> float:
    """Keep the base learning rate at every batch.

    ``peak_lr = base_lr``

    Args:
        batch_ratio: ``global_batch / base_batch`` [dimensionless]; does not matter here.

    Returns:
        The factor on ``base_lr`` [dimensionless].
    """
    del batch_ratio
    return 1.0


def linear(batch_ratio: float) -> float:
    """Multiply the learning rate by the batch ratio.

    ``peak_lr = base_lr * global_batch / base_batch``

    Args:
        batch_ratio: ``global_batch / base_batch`` [dimensionless].

    Returns:
        The factor on ``base_lr`` [dimensionless].

    Source:
        Goyal et al. 2017, arXiv:1706.02677, section 2.1.
    """
    return batch_ratio


def sqrt(batch_ratio: float) -> float:
    """Multiply the learning rate by the square root of the batch ratio.

    ``peak_lr = base_lr * sqrt(global_batch / base_batch)``

    Args:
        batch_ratio: ``global_batch / base_batch`` [dimensionless].

    Returns:
        The factor on ``base_lr`` [dimensionless].

    Source:
        Krizhevsky 2014, arXiv:1404.5997; Hoffer et al. 2017, arXiv:1705.08741.
    """
    return math.sqrt(batch_ratio)


RULES: Mapping[str, Rule] = {"none": none, "linear": linear, "sqrt": sqrt}


def peak_lr(
    lr_rule: Mapping[str, Any], *, base_lr: float, global_batch: int, base_batch: int
) -> float:
    """Learning rate at the end of warmup, ``base_lr * rule(global_batch / base_batch)``.

    Args:
        lr_rule: the ``lr_rule`` group: ``name`` and the rule's own settings.
        base_lr: learning rate tuned at ``base_batch`` [dimensionless].
        global_batch: examples per optimizer step [examples].
        base_batch: the reference batch [examples].

    Raises:
        ValueError: if the rule is unknown or does not take these settings.
    """
    rule_name = lr_rule["name"]
    if rule_name not in RULES:
        known = ", ".join(sorted(RULES))
        msg = (
            f"lr_rule must be one of {known}; got lr_rule={rule_name!r}. "
            "Add a rule in sweeper/domain/lr_rules.py."
        )
        raise ValueError(msg)
    if extra := sorted(set(lr_rule) - {"name"}):
        msg = f"lr_rule={rule_name} takes no settings; got {', '.join(extra)}. Remove them."
        raise ValueError(msg)
    return base_lr * RULES[rule_name](global_batch / base_batch)
