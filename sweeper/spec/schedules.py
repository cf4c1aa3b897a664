"""Decay schedules: the factor on the learning rate at a position in training."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag

from sweeper.spec.import_path import call, call_guarded
from sweeper.spec.values import (
    LARGEST,
    NAMED,
    OWN,
    InStep,
    Milestones,
    NotNegative,
    Own,
    Positive,
    Rule,
    Settings,
    WholeMilestones,
    named_or_own,
)

#: Equal parts of the training at whose ends the factor is checked.
_CHECKED_PARTS = 8
#: The factor at a position in training [epochs -> dimensionless].
Decay = Callable[[float], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """The properties of a training that a decay may depend on.

    Attributes:
        epochs: length of the training [epochs].
        warmup_epochs: length of the warmup [epochs].
        steps_per_epoch: optimizer steps per epoch [steps].
        peak_lr: learning rate at the end of the warmup [dimensionless].
        grown: epochs at which the batch was multiplied, ascending [epochs].
    """

    epochs: float
    warmup_epochs: float
    steps_per_epoch: float
    peak_lr: float
    grown: tuple[float, ...] = ()


class Constant(Settings):
    """Never decay: ``factor = 1``."""

    name: Literal["constant"]

    def decay(self, training: Training) -> Decay:
        """The factor at each position of a training."""
        del training
        return lambda epoch: 1.0


class PeriodicDecay(Settings):
    """Multiply by ``factor`` at each milestone: ``factor ** #{milestones <= epoch}``.

    A milestone of 30 takes effect at the first step of 0-based epoch 30.

    Attributes:
        milestones: positions in training, ascending [epochs].
        factor: each milestone multiplies the learning rate by this [dimensionless].

    Source:
        McCord & Dash 2021 ("periodic decay", 1/10 at 30, 60, 90); Goyal et al. 2017 (30, 60, 80).
    """

    name: Literal["periodic_decay"]
    milestones: Milestones
    factor: Positive

    def decay(self, training: Training) -> Decay:
        """The factor at each position of a training."""
        del training
        return lambda epoch: self.factor ** sum(m <= epoch for m in self.milestones)


class GrowingBatch(Settings):
    """Multiply the batch at milestones instead of dividing the rate, until it reaches its maximum.

    The rate is divided by ``factor`` at each milestone at which the batch does not grow:
    ``factor ** -max(0, #{milestones <= epoch} - #{grown <= epoch})``.

    Attributes:
        milestones: positions in training, ascending [epochs].
        factor: a growth multiplies the batch by it, a decay divides the rate by it [count].
        growth: whether the batch grows at the milestones or when the measured noise says so.
        max_batch: the largest batch [examples].

    Source:
        Smith et al. 2017, arXiv:1711.00489: SGD's noise goes as ``lr / global_batch``, so both ways
        lower it equally.
    """

    name: Literal["growing_batch"]
    milestones: WholeMilestones
    factor: Annotated[
        int,
        Field(ge=2, le=LARGEST),
        Rule("a whole number, 2 or more, because accumulation steps are multiplied by it"),
    ]
    growth: Literal["measured", "milestones"]
    max_batch: InStep

    def growths_allowed(self, global_batch: int) -> int:
        """How many times the batch may be multiplied without exceeding `max_batch` [count]."""
        allowed = 0
        while global_batch * self.factor ** (allowed + 1) <= self.max_batch:
            allowed += 1
        return allowed

    def decay(self, training: Training) -> Decay:
        """The factor at each position of a training."""

        def decay(epoch: float) -> float:
            reached = sum(milestone <= epoch for milestone in self.milestones)
            grown = sum(first <= epoch for first in training.grown)
            return float(self.factor) ** -max(0, reached - grown)

        return decay


class _ToTheEnd(Settings):
    """A decay that reaches its end rate when training ends.

    Attributes:
        end_lr: learning rate at the end [dimensionless].
        clock: where progress starts to count: `start`, at the start of training, including the
            warmup; `warmup`, at the end of the warmup.
    """

    end_lr: NotNegative
    clock: Annotated[
        Literal["start", "warmup"],
        Rule(
            "one of start, warmup",
            "The decay starts with training, or at the end of the warmup.",
        ),
    ]

    def _end(self, training: Training) -> float:
        """The factor at the end of training."""
        if not self.end_lr > training.peak_lr:  # true for nan too: a peak that was not recorded
            return self.end_lr / training.peak_lr
        msg = (
            f"schedule.end_lr must be from 0 to the peak rate; got schedule.end_lr={self.end_lr}, "
            f"peak rate {training.peak_lr:g}. Lower schedule.end_lr."
        )
        raise ValueError(msg)

    def _progress(self, training: Training, extra_steps: float = 0) -> Callable[[float], float]:
        """The fraction of the decay completed, from 0 to 1, at a position in training [epochs]."""
        start = training.warmup_epochs if self.clock == "warmup" else 0.0
        length = training.epochs - start + extra_steps / training.steps_per_epoch
        return lambda epoch: min(1.0, max(0.0, (epoch - start) / length))


class Polynomial(_ToTheEnd):
    """Fall to the end rate as a power of the remaining fraction.

    ``lr = end_lr + (peak_lr - end_lr) * (1 - progress)**power``

    Attributes:
        power: 1 is a straight line, 2 LARS's parabola [dimensionless].
        extra_steps: how far past the last step the end lies; 1 in MLPerf [steps].

    Source:
        You et al. 2017, arXiv:1708.03888 (power 2); mlcommons/training
        image_classification/tensorflow2/lars_util.py (clock `warmup`, one extra step).
    """

    name: Literal["polynomial"]
    power: NotNegative
    extra_steps: NotNegative

    def decay(self, training: Training) -> Decay:
        """The factor at each position of a training."""
        end, progress = self._end(training), self._progress(training, self.extra_steps)
        return lambda epoch: end + (1 - end) * (1 - progress(epoch)) ** self.power


class Cosine(_ToTheEnd):
    """Fall along half a cosine to the end rate.

    ``lr = end_lr + (peak_lr - end_lr) * (1 + cos(pi * progress)) / 2``

    Source:
        Loshchilov & Hutter 2016, arXiv:1608.03983, without restarts.
    """

    name: Literal["cosine"]

    def decay(self, training: Training) -> Decay:
        """The factor at each position of a training."""
        end, progress = self._end(training), self._progress(training)
        return lambda epoch: end + (1 - end) * (1 + math.cos(math.pi * progress(epoch))) / 2


class OwnSchedule(Own):
    """A user's function of a `Training` and its settings that returns a `Decay`."""

    def decay(self, training: Training) -> Decay:
        """The factor at each position of a training.

        ValueError if the function cannot be imported, does not take these settings, or raises.
        """
        settings = (self.model_extra or {}).items()
        frozen = {k: tuple(v) if isinstance(v, list) else v for k, v in settings}
        key = f"schedule.{OWN}"
        what = f"{key}={self.target}"
        return call_guarded(what, lambda: call(self.target, training, key=key, settings=frozen))


_NamedSchedule = Annotated[
    Constant | Cosine | GrowingBatch | PeriodicDecay | Polynomial, Field(discriminator="name")
]
Schedule = Annotated[
    Annotated[_NamedSchedule, Tag(NAMED)] | Annotated[OwnSchedule, Tag(OWN)],
    Discriminator(named_or_own),
]


def build_decay(schedule: Schedule, training: Training) -> Decay:
    """The decay of a schedule, after checking its factor at a few positions.

    ValueError if a rate would be negative, infinite or not a number.
    """
    decay = schedule.decay(training)
    for part in range(_CHECKED_PARTS + 1):
        epoch = training.epochs * part / _CHECKED_PARTS
        name = f"schedule={schedule.name}"
        factor = math.nan
        if callable(decay):  # a user's function may return anything
            factor = call_guarded(name, lambda at=epoch: number_or_nan(lambda: decay(at)))
        if not 0 <= factor * training.peak_lr < math.inf:
            msg = (
                f"{name} must give finite rates, 0 or more; got a factor "
                f"of {factor!r} at epoch {epoch:g}. Correct the schedule's settings."
            )
            raise ValueError(msg)
    return decay


def number_or_nan(formula: Callable[[], float]) -> float:
    """The value of a formula or of a user's function; inf if too large, nan if not a number."""
    try:
        value = formula()
    except OverflowError:
        return math.inf
    except ZeroDivisionError:
        return math.nan
    return float(value) if isinstance(value, Real) else math.nan
