"""Learning-rate rules: the peak rate at a global batch, and for some rules other settings."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

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
    Rule,
    Settings,
    Text,
    named_or_own,
)

#: A beta this near to 0 is 0 up to rounding.
_ROUNDING = 1e-9
RunID = Text | Index  # Hydra reads an id that has only digits as a number

#: By the name of a setting of an optimizer's groups, such as `betas`, `eps` or `weight_decay`: its
#: value at this batch from that at the base batch.
Mappings = Mapping[str, Callable[[Any], Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """All that a rule may depend on: no layout, no step.

    Attributes:
        base_lr: learning rate tuned at `base_batch` [dimensionless].
        base_batch: the reference batch [examples].
        global_batch: examples per optimizer step [examples].
        trained_examples: examples of all steps of the training [examples].
    """

    base_lr: float
    base_batch: float
    global_batch: float
    trained_examples: float

    @property
    def batch_ratio(self) -> float:
        """``global_batch / base_batch`` [dimensionless]."""
        return self.global_batch / self.base_batch


class _AnyRule(Settings):
    """A rule gives the peak learning rate; at the base batch it gives ``base_lr``."""

    def map_settings(self, at: Scaling) -> Mappings:
        """The settings beside the rate that the rule changes."""
        del at
        return {}


class _Rule(_AnyRule):
    """A rule whose warmup may be scaled.

    Attributes:
        warmup_exponent: exponent of the batch ratio by which the warmup is scaled; None: unscaled.
    """

    warmup_exponent: Number | None = None


def _known_scale(noise_scale: float | str) -> float:
    """The number; ValueError if it was to be read from a results folder."""
    if not isinstance(noise_scale, str):
        return noise_scale
    msg = (
        "lr_rule.noise_scale must be a number above 0 where no results folder is read; "
        f"got lr_rule.noise_scale={noise_scale}. Write the number."
    )
    raise ValueError(msg)


class NoScaling(_Rule):
    """Keep the base learning rate at every batch: ``peak_lr = base_lr``."""

    name: Literal["none"] = "none"

    def peak_lr(self, at: Scaling) -> float:
        """``base_lr``."""
        return at.base_lr


class Linear(_Rule):
    """Multiply by the batch ratio: ``peak_lr = base_lr * batch_ratio``.

    Keeps SGD's noise per epoch, which goes as ``lr / global_batch``, the same.

    Source:
        Goyal et al. 2017, arXiv:1706.02677, section 2.1.
    """

    name: Literal["linear"] = "linear"

    def peak_lr(self, at: Scaling) -> float:
        """``base_lr * batch_ratio``."""
        return at.base_lr * at.batch_ratio


class Sqrt(_Rule):
    """Multiply by the root of the batch ratio: ``peak_lr = base_lr * sqrt(batch_ratio)``.

    Keeps the covariance of a step's update, which goes as ``lr**2 / global_batch``, the same.

    Source:
        Krizhevsky 2014, arXiv:1404.5997; Hoffer et al. 2017, arXiv:1705.08741.
    """

    name: Literal["sqrt"] = "sqrt"

    def peak_lr(self, at: Scaling) -> float:
        """``base_lr * sqrt(batch_ratio)``."""
        return at.base_lr * math.sqrt(at.batch_ratio)


class LEGW(_AnyRule):
    """Like `Sqrt`, with a warmup of the same number of steps at every batch (exponent 1).

    Source:
        You et al. 2019, arXiv:1901.08256.
    """

    name: Literal["legw"] = "legw"
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

    name: Literal["power"] = "power"
    exponent: Number

    def peak_lr(self, at: Scaling) -> float:
        """``base_lr * batch_ratio**exponent``."""
        return at.base_lr * at.batch_ratio**self.exponent


class AdamSDE(_Rule):
    """The square-root rule of Adam's stochastic differential equation, for all of its settings.

    ``peak_lr = base_lr * sqrt(k)``, ``1 - beta -> k (1 - beta)``, ``eps -> eps / sqrt(k)`` for the
    batch ratio ``k``. A beta of 0 stays 0: Adam without momentum is RMSprop, whose rule has only
    the other.

    Source:
        Malladi et al. 2022, arXiv:2205.10287.
    """

    name: Literal["adam_sde"] = "adam_sde"

    def peak_lr(self, at: Scaling) -> float:
        """``base_lr * sqrt(batch_ratio)``."""
        return at.base_lr * math.sqrt(at.batch_ratio)

    def map_settings(self, at: Scaling) -> Mappings:
        """Of betas and epsilon; ValueError for a beta that the rule would make 0 or less."""

        def scale(beta: float) -> float:
            scaled = 1 - at.batch_ratio * (1 - beta)
            if beta and scaled < _ROUNDING:
                msg = (
                    "lr_rule=adam_sde needs (1 - beta) x batch / base_batch below 1; got "
                    f"beta={beta}, batch={at.global_batch}, base_batch={at.base_batch}. "
                    "Raise base_batch, or use lr_rule=half_life."
                )
                raise ValueError(msg)
            return scaled if beta else beta

        root = math.sqrt(at.batch_ratio)
        return {"betas": lambda betas: tuple(map(scale, betas)), "eps": lambda eps: eps / root}


class HalfLife(_Rule):
    """Keep the second moment's half-life in examples: ``beta2 -> beta2**batch_ratio``.

    It is ``batch * log(2) / log(1 / beta2)``. Beta1 stays, and
    ``peak_lr = base_lr * batch_ratio**exponent``.

    Attributes:
        exponent: of the rate; 0 keeps it [dimensionless].

    Source:
        Marek et al. 2025, arXiv:2507.07101.
    """

    name: Literal["half_life"] = "half_life"
    exponent: Number

    def peak_lr(self, at: Scaling) -> float:
        """``base_lr * batch_ratio**exponent``."""
        return at.base_lr * at.batch_ratio**self.exponent

    def map_settings(self, at: Scaling) -> Mappings:
        """Of the second beta."""
        ratio = at.batch_ratio
        return {"betas": lambda betas: (betas[0], betas[1] ** ratio, *betas[2:])}


class LinearCapped(_Rule):
    """Linear up to a cap: ``peak_lr = min(base_lr * batch_ratio, max_lr)``.

    Attributes:
        max_lr: the highest learning rate, at least ``base_lr`` [dimensionless].
    """

    name: Literal["linear_capped"] = "linear_capped"
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


class Saturating(_Rule):
    """Linear far below the noise scale, constant far above it.

    ``peak_lr = base_lr * (1 + noise_scale / base_batch) / (1 + noise_scale / global_batch)``,
    that is ``max_lr / (1 + noise_scale / global_batch)``, with ``max_lr`` chosen so that the base
    batch has the base rate. AdaScale's gain (Johnson et al. 2020) is this ratio, measured per step.

    Attributes:
        noise_scale: the gradient noise scale, or `measured` until planning fills it in [examples].
        measured_in: the run that measured it.

    Source:
        McCandlish et al. 2018, arXiv:1812.06162, equation 2.6 (from memory).
    """

    name: Literal["saturating"] = "saturating"
    noise_scale: Positive | Literal["measured"]
    measured_in: RunID | None = None

    def peak_lr(self, at: Scaling) -> float:
        """``base_lr * (1 + noise_scale / base_batch) / (1 + noise_scale / global_batch)``."""
        scale = _known_scale(self.noise_scale)
        return at.base_lr * (1 + scale / at.base_batch) / (1 + scale / at.global_batch)


class Surge(_Rule):
    """Rise as the square root, peak at the critical batch, fall beyond it; for Adam and sign steps.

    ``peak_lr`` is proportional to ``1 / (sqrt(noise_scale / B) + sqrt(B / noise_scale))`` at the
    global batch ``B``, and is ``base_lr`` at the base batch. Differs from the exact law, which
    tends to a constant above zero far beyond the peak; this form tends to zero.

    Attributes:
        noise_scale: the paper's, ``E_min / S_min`` over whole runs at each batch's best rate, not
            the gradient noise scale; or `critical` until it is read from tuned runs [examples].
        measured_in: the results folder that has them.
        measured_at: the level of their objective to which they are compared; None: within reach.

    Source:
        Li et al. 2024, arXiv:2405.14578, equations 22 and 23.
    """

    name: Literal["surge"] = "surge"
    noise_scale: Annotated[
        Positive | Literal["critical"],
        Rule(
            "a number above 0, or critical",
            "Surge's is E_min / S_min of whole runs at each batch's best rate; the measured noise "
            "of gradients is another quantity, often orders of magnitude smaller.",
        ),
    ]
    measured_in: Text | None = None
    measured_at: Number | None = None

    def peak_lr(self, at: Scaling) -> float:
        """``base_lr * height(global_batch) / height(base_batch)``, with the height of the curve."""
        scale = _known_scale(self.noise_scale)

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

    name: Literal["adascale"] = "adascale"
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
    """A user's function of a `Scaling` that returns the peak rate, or it as `lr` of `Mappings`."""

    measured_in: RunID | None = None

    def peak_lr(self, at: Scaling) -> float:
        """The function's result.

        ValueError if it cannot be imported, does not take these settings, or raises.
        """
        found = self._call(at)
        return found.get("lr", math.nan) if isinstance(found, Mapping) else found

    def map_settings(self, at: Scaling) -> Mappings:
        """The rest of the result, if it is a mapping; raises as `peak_lr`, also when applied."""
        found, what = self._call(at), f"lr_rule.{OWN}={self.target}"

        def guard(of: Callable[[Any], Any]) -> Callable[[Any], Any]:
            return lambda value: call_guarded(what, lambda: of(value))

        pairs = found.items() if isinstance(found, Mapping) else ()
        return {name: guard(of) for name, of in pairs if name != "lr"}

    def _call(self, at: Scaling) -> Any:
        key, settings = f"lr_rule.{OWN}", self.model_extra or {}
        what = f"{key}={self.target}"
        return call_guarded(what, lambda: call(self.target, at, key=key, settings=settings))


_NamedRule = Annotated[
    AdamSDE | AdaScaleRule | HalfLife | LEGW | Linear | LinearCapped | NoScaling | Power
    | Saturating | Sqrt | Surge,
    Field(discriminator="name"),
]  # fmt: skip
LRRule = Annotated[
    Annotated[_NamedRule, Tag(NAMED)] | Annotated[OwnRule, Tag(OWN)], Discriminator(named_or_own)
]


def peak_lr(lr_rule: LRRule, at: Scaling) -> float:
    """The learning rate at the end of warmup under a rule.

    ValueError if the rule refuses these settings or gives no positive, finite rate.
    """
    peak = number_or_nan(lambda: lr_rule.peak_lr(at))
    if not 0 < peak < math.inf:
        given = lr_rule.model_dump(exclude={"name"}, exclude_none=True, by_alias=True)
        msg = (
            f"lr_rule={lr_rule.name} must give a positive, finite rate; got {peak!r} at "
            f"batch={at.global_batch}, base_lr={at.base_lr!r}"
            f"{''.join(f', lr_rule.{k}={v!r}' for k, v in given.items())}. Correct these settings."
        )
        raise ValueError(msg)
    return peak
