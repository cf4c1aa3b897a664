"""A learning-rate rule applied to a batch: the peak rate and the length of the warmup."""

import math

from sweeper.spec.lr_rules import LRRule, Scaling


def peak_lr(lr_rule: LRRule, *, base_lr: float, global_batch: int, base_batch: int) -> float:
    """Learning rate at the end of warmup, by a rule.

    Args:
        lr_rule: the rule.
        base_lr: learning rate tuned at ``base_batch`` [dimensionless].
        global_batch: examples per optimizer step [examples].
        base_batch: the reference batch [examples].

    Raises:
        ValueError: if the rule does not take these settings or gives no positive rate.
    """
    at = Scaling(base_lr=base_lr, base_batch=base_batch, global_batch=global_batch)
    peak = lr_rule.peak_lr(at)
    if not 0 < peak < math.inf:
        msg = (
            f"lr_rule={lr_rule.name} must give a positive, finite rate; got {peak!r} at "
            f"batch={global_batch}. Correct the rule's settings."
        )
        raise ValueError(msg)
    return peak


def warmup_epochs(lr_rule: LRRule, *, warmup: float, batch_ratio: float) -> float:
    """Length of the warmup at this batch, ``warmup * batch_ratio**warmup_exponent`` [epochs].

    A rule without `warmup_exponent` leaves the warmup as it is. LEGW's exponent is 1: the epochs
    grow with the batch, the number of steps stays.

    Args:
        lr_rule: the rule.
        warmup: length of the warmup at the base batch [epochs].
        batch_ratio: ``global_batch / base_batch`` [dimensionless].

    Source:
        You et al. 2019, arXiv:1901.08256 (exponent 1).
    """
    if lr_rule.warmup_exponent is None:
        return warmup
    return warmup * batch_ratio**lr_rule.warmup_exponent
