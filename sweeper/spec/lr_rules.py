"""Learning-rate rules: how the peak rate follows the global batch. Pure functions of the batch."""

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sweeper.spec.import_path import imported


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """All that a rule may see: no layout, no data, no step.

    Attributes:
        base_lr: learning rate tuned at `base_batch` [dimensionless].
        base_batch: the reference batch [examples].
        global_batch: examples per optimizer step [examples].
    """

    base_lr: float
    base_batch: float
    global_batch: float

    @property
    def batch_ratio(self) -> float:
        """``global_batch / base_batch`` [dimensionless]."""
        return self.global_batch / self.base_batch


#: A rule gives the peak learning rate; at the base batch it gives ``base_lr``.
Rule = Callable[..., float]


def none(at: Scaling) -> float:
    """Keep the base learning rate at every batch: ``peak_lr = base_lr``."""
    return at.base_lr


def linear(at: Scaling) -> float:
    """Multiply by the batch ratio: ``peak_lr = base_lr * batch_ratio``.

    Keeps the noise of SGD per epoch, ``lr / global_batch``, the same.

    Source:
        Goyal et al. 2017, arXiv:1706.02677, section 2.1.
    """
    return at.base_lr * at.batch_ratio


def sqrt(at: Scaling) -> float:
    """Multiply by the root of the batch ratio.

    ``peak_lr = base_lr * sqrt(batch_ratio)``

    Keeps the covariance of one step's update, ``lr**2 / global_batch``, the same.

    Source:
        Krizhevsky 2014, arXiv:1404.5997; Hoffer et al. 2017, arXiv:1705.08741.
    """
    return at.base_lr * math.sqrt(at.batch_ratio)


def power(at: Scaling, *, exponent: float) -> float:
    """Multiply by a power of the batch ratio: ``peak_lr = base_lr * batch_ratio**exponent``.

    Args:
        at: the batches.
        exponent: 0 is `none`, 0.5 `sqrt`, 1 `linear` [dimensionless].

    Source:
        An empirical law without a theory; McCandlish et al. 2018 saw 0.5 to 1 with Adam.
    """
    return at.base_lr * at.batch_ratio**exponent


def linear_capped(at: Scaling, *, max_lr: float) -> float:
    """Linear up to a highest rate: ``peak_lr = min(base_lr * batch_ratio, max_lr)``.

    Args:
        at: the batches.
        max_lr: the highest learning rate, at least ``base_lr`` [dimensionless].

    Raises:
        ValueError: if the cap is below the base rate.
    """
    if max_lr < at.base_lr:
        msg = (
            f"lr_rule.max_lr must be at least base_lr; got lr_rule.max_lr={max_lr}, "
            f"base_lr={at.base_lr}. Raise the cap or lower base_lr."
        )
        raise ValueError(msg)
    return min(linear(at), max_lr)


def saturating(at: Scaling, *, noise_scale: float) -> float:
    """Linear far below the noise scale, constant far above it.

    ``peak_lr = base_lr * (1 + noise_scale / base_batch) / (1 + noise_scale / global_batch)``,
    that is ``max_lr / (1 + noise_scale / global_batch)`` through the base point. AdaScale's gain
    (Johnson et al. 2020) is the same ratio, measured anew at each step.

    Args:
        at: the batches.
        noise_scale: the gradient's noise scale, measured beforehand; in a config also `measured`:
            the one that the run `measured_in` recorded, put in its place by planning [examples].

    Source:
        McCandlish et al. 2018, arXiv:1812.06162, equation 2.6 (from memory).
    """
    _check_noise_scale(noise_scale)
    return at.base_lr * (1 + noise_scale / at.base_batch) / (1 + noise_scale / at.global_batch)


def surge(at: Scaling, *, noise_scale: float) -> float:
    """Rise as the root, peak at the noise scale, fall beyond it; for Adam and sign updates.

    ``peak_lr`` is proportional to ``1 / (sqrt(noise_scale / B) + sqrt(B / noise_scale))`` at the
    global batch ``B``, through the base point. Differs from the exact law: far beyond the peak
    that tends to a constant above zero, this form to zero.

    Args:
        at: the batches.
        noise_scale: the batch of the highest rate; not McCandlish's noise scale [examples].

    Source:
        Li et al. 2024, arXiv:2405.14578.
    """
    _check_noise_scale(noise_scale)

    def height(batch: float) -> float:
        return 2 / (math.sqrt(noise_scale / batch) + math.sqrt(batch / noise_scale))

    return at.base_lr * height(at.global_batch) / height(at.base_batch)


def adascale(at: Scaling, *, smoothing: float | None) -> float:
    """The rate of the base batch; each step multiplies it by the gain it measures.

    Args:
        at: the batches.
        smoothing: of the gain's moving averages, from 0 to below 1; None: by the batch ratio.

    Source:
        Johnson et al. 2020, arXiv:2007.05105; the gain is in adascale.py and noise.py.

    Raises:
        ValueError: if the batch is below the base batch, where no gain is defined.
    """
    if at.global_batch < at.base_batch:
        msg = (
            "batch must be at least base_batch with lr_rule=adascale, whose gain is 1 there; got "
            f"batch={at.global_batch}, base_batch={at.base_batch}. Lower base_batch."
        )
        raise ValueError(msg)
    if smoothing is not None and not 0 <= smoothing < 1:
        msg = (
            "lr_rule.smoothing must be a number from 0 to below 1, or null; "
            f"got lr_rule.smoothing={smoothing!r}."
        )
        raise ValueError(msg)
    return at.base_lr


RULES: Mapping[str, Rule] = {
    "adascale": adascale,
    "none": none,
    "linear": linear,
    "sqrt": sqrt,
    "power": power,
    "linear_capped": linear_capped,
    "legw": sqrt,  # its warmup, scaled linearly with the batch, is in conf/lr_rule/legw.yaml
    "saturating": saturating,
    "surge": surge,
}

#: Keys of the group that are not settings of the rule's function.
_NOT_SETTINGS = frozenset({"name", "_target_", "warmup_exponent", "measured_in"})


def peak_lr(
    lr_rule: Mapping[str, Any], *, base_lr: float, global_batch: int, base_batch: int
) -> float:
    """Learning rate at the end of warmup, by the rule of a `lr_rule` group.

    Args:
        lr_rule: the group: `name` and the rule's own settings; with `_target_`, the dotted path
            of a function like those in this file, the rule is the user's own.
        base_lr: learning rate tuned at ``base_batch`` [dimensionless].
        global_batch: examples per optimizer step [examples].
        base_batch: the reference batch [examples].

    Raises:
        ValueError: if the rule is unknown, does not take these settings or gives no positive rate.
    """
    rule, name = _rule(lr_rule), lr_rule["name"]
    settings = {key: value for key, value in lr_rule.items() if key not in _NOT_SETTINGS}
    at = Scaling(base_lr=base_lr, base_batch=base_batch, global_batch=global_batch)
    try:
        inspect.signature(rule).bind(at, **settings)
    except TypeError as error:
        given = ", ".join(sorted(settings)) or "none"
        msg = f"lr_rule={name} must be given its own settings; got {given}: {error}."
        raise ValueError(msg) from error
    peak = rule(at, **settings)
    if not 0 < peak < math.inf:
        msg = (
            f"lr_rule={name} must give a positive, finite rate; got {peak!r} at "
            f"batch={global_batch}. Correct the rule's settings."
        )
        raise ValueError(msg)
    return peak


def warmup_epochs(lr_rule: Mapping[str, Any], *, warmup: float, batch_ratio: float) -> float:
    """Length of the warmup at this batch, ``warmup * batch_ratio**warmup_exponent`` [epochs].

    A rule without `warmup_exponent` leaves the warmup as it is. LEGW's exponent is 1: the epochs
    grow with the batch, the number of steps stays.

    Args:
        lr_rule: the `lr_rule` group.
        warmup: length of the warmup at the base batch [epochs].
        batch_ratio: ``global_batch / base_batch`` [dimensionless].

    Source:
        You et al. 2019, arXiv:1901.08256 (exponent 1).
    """
    if "warmup_exponent" not in lr_rule:
        return warmup
    return warmup * batch_ratio ** lr_rule["warmup_exponent"]


def _rule(lr_rule: Mapping[str, Any]) -> Rule:
    if "_target_" in lr_rule:
        return imported(lr_rule["_target_"], "lr_rule._target_")
    name = lr_rule["name"]
    if name not in RULES:
        msg = (
            f"lr_rule must be one of {', '.join(sorted(RULES))}; got lr_rule={name!r}. "
            "Add a rule in sweeper/spec/lr_rules.py, or name your own with lr_rule._target_."
        )
        raise ValueError(msg)
    return RULES[name]


def _check_noise_scale(noise_scale: Any) -> None:
    if not isinstance(noise_scale, int | float) or not 0 < noise_scale < math.inf:
        msg = (
            "lr_rule.noise_scale must be a number above 0 [examples]; "
            f"got lr_rule.noise_scale={noise_scale!r}. Measure it, or use another rule."
        )
        raise ValueError(msg)
