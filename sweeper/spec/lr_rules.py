"""Learning-rate rules: how the peak rate scales with the global batch. Pure functions."""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag

from sweeper.spec.import_path import call, call_guarded
from sweeper.spec.schedules import number_or_nan
from sweeper.spec.values import (
    NAMED,
    OWN,
    Fraction,
    Index,
    Number,
    Own,
    Positive,
    Settings,
    Text,
    named_or_own,
)

RunID = Text | Index  # Hydra reads an id that has only digits as a number


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """All that a rule may depend on: no layout, no data, no step.

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


class _Rule(Settings):
    """A rule gives the peak learning rate; at the base batch it gives ``base_lr``.

    Attributes:
        warmup_exponent: exponent of the batch ratio by which the warmup is scaled; None: unscaled.
    """

    warmup_exponent: Number | None = None


class _RuleOfNoise(_Rule):
    """A rule that depends on the gradient noise scale.

    Attributes:
        noise_scale: the number, or `measured` until planning fills it in [examples].
        measured_in: the run that measured it.
    """

    noise_scale: Positive | Literal["measured"]
    measured_in: RunID | None = None

    @property
    def _noise_scale(self) -> float:
        if self.noise_scale != "measured":
            return self.noise_scale
        msg = (
            "lr_rule.noise_scale must be a number above 0 where no results folder is read; "
            "got lr_rule.noise_scale=measured. Write the number."
        )
        raise ValueError(msg)


class NoScaling(_Rule):
    """Keep the base learning rate at every batch: ``peak_lr = base_lr``."""

    name: Literal["none"]

    def peak_lr(self, at: Scaling) -> float:
        """``base_lr``."""
        return at.base_lr


class Linear(_Rule):
    """Multiply by the batch ratio: ``peak_lr = base_lr * batch_ratio``.

    Keeps SGD's noise per epoch, which goes as ``lr / global_batch``, the same.

    Source:
        Goyal et al. 2017, arXiv:1706.02677, section 2.1.
    """

    name: Literal["linear"]

    def peak_lr(self, at: Scaling) -> float:
        """``base_lr * batch_ratio``."""
        return at.base_lr * at.batch_ratio


class Sqrt(_Rule):
    """Multiply by the root of the batch ratio: ``peak_lr = base_lr * sqrt(batch_ratio)``.

    Keeps the covariance of a step's update, which goes as ``lr**2 / global_batch``, the same.

    Source:
        Krizhevsky 2014, arXiv:1404.5997; Hoffer et al. 2017, arXiv:1705.08741.
    """

    name: Literal["sqrt"]

    def peak_lr(self, at: Scaling) -> float:
        """``base_lr * sqrt(batch_ratio)``."""
        return at.base_lr * math.sqrt(at.batch_ratio)


class LEGW(Settings):
    """Like `Sqrt`, with a warmup of the same number of steps at every batch (exponent 1).

    Source:
        You et al. 2019, arXiv:1901.08256.
    """

    name: Literal["legw"]
    warmup_exponent: Number

    def peak_lr(self, at: Scaling) -> float:
        """``base_lr * sqrt(batch_ratio)``."""
        return at.base_lr * math.sqrt(at.batch_ratio)


class Power(_Rule):
    """Multiply by a power of the batch ratio: ``peak_lr = base_lr * batch_ratio**exponent``.

    Attributes:
        exponent: 0 is `none`, 0.5 `sqrt`, 1 `linear` [dimensionless].

    Source:
        An empirical law without theory; McCandlish et al. 2018 found 0.5 to 1 with Adam.
    """

    name: Literal["power"]
    exponent: Number

    def peak_lr(self, at: Scaling) -> float:
        """``base_lr * batch_ratio**exponent``."""
        return at.base_lr * at.batch_ratio**self.exponent


class LinearCapped(_Rule):
    """Linear up to a cap: ``peak_lr = min(base_lr * batch_ratio, max_lr)``.

    Attributes:
        max_lr: the highest learning rate, at least ``base_lr`` [dimensionless].
    """

    name: Literal["linear_capped"]
    max_lr: Positive

    def peak_lr(self, at: Scaling) -> float:
        """``min(base_lr * batch_ratio, max_lr)``; ValueError if the cap is below the base rate."""
        if self.max_lr < at.base_lr:
            msg = (
                f"lr_rule.max_lr must be at least base_lr; got lr_rule.max_lr={self.max_lr}, "
                f"base_lr={at.base_lr}. Raise the cap or lower base_lr."
            )
            raise ValueError(msg)
        return min(at.base_lr * at.batch_ratio, self.max_lr)


class Saturating(_RuleOfNoise):
    """Linear far below the noise scale, constant far above it.

    ``peak_lr = base_lr * (1 + noise_scale / base_batch) / (1 + noise_scale / global_batch)``,
    that is ``max_lr / (1 + noise_scale / global_batch)``, with ``max_lr`` chosen so that the base
    batch has the base rate. AdaScale's gain (Johnson et al. 2020) is this ratio, measured per step.

    Source:
        McCandlish et al. 2018, arXiv:1812.06162, equation 2.6 (from memory).
    """

    name: Literal["saturating"]

    def peak_lr(self, at: Scaling) -> float:
        """``base_lr * (1 + noise_scale / base_batch) / (1 + noise_scale / global_batch)``."""
        scale = self._noise_scale
        return at.base_lr * (1 + scale / at.base_batch) / (1 + scale / at.global_batch)


class Surge(_RuleOfNoise):
    """Rise as the square root, peak at the noise scale, fall beyond it; for Adam and sign updates.

    ``peak_lr`` is proportional to ``1 / (sqrt(noise_scale / B) + sqrt(B / noise_scale))`` at the
    global batch ``B``, and is ``base_lr`` at the base batch. Differs from the exact law, which
    tends to a constant above zero far beyond the peak; this form tends to zero.

    Here the noise scale is the batch with the highest rate, not McCandlish's.

    Source:
        Li et al. 2024, arXiv:2405.14578.
    """

    name: Literal["surge"]

    def peak_lr(self, at: Scaling) -> float:
        """``base_lr * height(global_batch) / height(base_batch)``, with the height of the curve."""
        scale = self._noise_scale

        def height(batch: float) -> float:
            return 2 / (math.sqrt(scale / batch) + math.sqrt(batch / scale))

        return at.base_lr * height(at.global_batch) / height(at.base_batch)


class AdaScaleRule(_Rule):
    """The base batch's rate, which each step multiplies by the gain that it measures.

    Attributes:
        smoothing: decay of the moving averages, from 0 to below 1; None: from the batch ratio.

    Source:
        Johnson et al. 2020, arXiv:2007.05105; see adascale.py and gradient_noise.py for the gain.
    """

    name: Literal["adascale"]
    smoothing: Fraction | None

    def peak_lr(self, at: Scaling) -> float:
        """``base_lr``.

        ValueError if the batch is below the base batch, where no gain is defined.
        """
        if at.global_batch < at.base_batch:
            msg = (
                "batch must be at least base_batch with lr_rule=adascale, whose gain is 1 there; "
                f"got batch={at.global_batch}, base_batch={at.base_batch}. Lower base_batch."
            )
            raise ValueError(msg)
        return at.base_lr


class OwnRule(_Rule, Own):
    """A user's function of a `Scaling` and its settings that returns the peak rate."""

    measured_in: RunID | None = None

    def peak_lr(self, at: Scaling) -> float:
        """The function's result.

        ValueError if it cannot be imported, does not take these settings, or raises.
        """
        key, settings = f"lr_rule.{OWN}", self.model_extra or {}
        what = f"{key}={self.target}"
        return call_guarded(what, lambda: call(self.target, at, key=key, settings=settings))


_NamedRule = Annotated[
    AdaScaleRule | LEGW | Linear | LinearCapped | NoScaling | Power | Saturating | Sqrt | Surge,
    Field(discriminator="name"),
]
LRRule = Annotated[
    Annotated[_NamedRule, Tag(NAMED)] | Annotated[OwnRule, Tag(OWN)], Discriminator(named_or_own)
]


def peak_lr(lr_rule: LRRule, *, base_lr: float, global_batch: int, base_batch: int) -> float:
    """The learning rate at the end of warmup under a rule.

    Args:
        lr_rule: the rule.
        base_lr: learning rate tuned at ``base_batch`` [dimensionless].
        global_batch: examples per optimizer step [examples].
        base_batch: the reference batch [examples].

    Raises:
        ValueError: if the rule refuses these settings or gives no positive, finite rate.
    """
    at = Scaling(base_lr=base_lr, base_batch=base_batch, global_batch=global_batch)
    peak = number_or_nan(lambda: lr_rule.peak_lr(at))
    if not 0 < peak < math.inf:
        given = lr_rule.model_dump(exclude={"name"}, exclude_none=True, by_alias=True)
        msg = (
            f"lr_rule={lr_rule.name} must give a positive, finite rate; got {peak!r} at "
            f"batch={global_batch}{''.join(f', lr_rule.{k}={v!r}' for k, v in given.items())}. "
            "Correct the rule's settings."
        )
        raise ValueError(msg)
    return peak
