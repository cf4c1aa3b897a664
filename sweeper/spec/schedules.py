"""Decay schedules: the factor on the learning rate at a position in training."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from numbers import Real
from typing import Annotated, ClassVar, Literal

from pydantic import Discriminator, Field, Tag

from sweeper.spec.import_path import call, call_guarded
from sweeper.spec.values import (
    LARGEST,
    NAMED,
    OWN,
    Ascending,
    InStep,
    ListOf,
    Milestones,
    NotNegative,
    Own,
    Positive,
    Rule,
    Settings,
    Text,
    named_or_own,
)

#: How rows name the schedules by which a batch grows.
GROWING = ("adaptive_batch", "batch_by_rate", "batch_warmup", "growing_batch", "seesaw")
#: An end of an epoch may be written with as many digits in `schedule.at` [epochs].
_WHOLE = 1e-3
#: Equal parts of the training at whose ends the factor is checked.
_CHECKED_PARTS = 8
#: Equal parts of the steps in which `BatchByRate` integrates the rate and changes the batch.
_INTEGRATED_PARTS = 1000
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
        rates: learning rate from each of these on, where it is measured too [dimensionless].
    """

    epochs: float
    warmup_epochs: float
    steps_per_epoch: float
    peak_lr: float
    grown: tuple[float, ...] = ()
    rates: tuple[float, ...] = ()


class Constant(Settings):
    """Never decay: ``factor = 1``."""

    name: Literal["constant"] = "constant"

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

    name: Literal["periodic_decay"] = "periodic_decay"
    milestones: Milestones
    factor: Positive

    def decay(self, training: Training) -> Decay:
        """The factor at each position of a training."""
        del training
        return lambda epoch: self.factor ** sum(m <= epoch for m in self.milestones)


Factor = Annotated[
    int,
    Field(ge=2, le=LARGEST),
    Rule("a whole number, 2 or more, because accumulation steps are multiplied by it"),
]
RateExponent = Annotated[int | float, Field(ge=-1, le=1), Rule("a number from -1 to 1")]


class GrowingBatch(Settings):
    """Multiply the batch at milestones instead of dividing the rate, until it reaches its maximum.

    The rate is divided by ``factor`` at each milestone at which the batch does not grow:
    ``factor ** -max(0, #{milestones <= epoch} - #{grown <= epoch})``.

    Attributes:
        milestones: positions in training, ascending [epochs, or warmup_unit].
        factor: a growth multiplies the batch by it, a decay divides the rate by it [count].
        growth: whether the batch grows at the milestones or when the measured noise says so.
        max_batch: the largest batch [examples].
        rate_exponent: a growth also multiplies the rate by this power of `factor`; None: 0.

    Source:
        Smith et al. 2017, arXiv:1711.00489: SGD's noise goes as ``lr / global_batch``, so both ways
        lower it equally.
    """

    name: Literal["growing_batch"] = "growing_batch"
    milestones: Milestones
    factor: Factor
    growth: Literal["measured", "milestones"]
    max_batch: InStep
    rate_exponent: RateExponent | None = None

    def growths_allowed(self, global_batch: int) -> int:
        """How many times the batch may be multiplied without exceeding `max_batch` [count]."""
        allowed = 0
        while global_batch * self.factor ** (allowed + 1) <= self.max_batch:
            allowed += 1
        return allowed

    def changes(self, global_batch: int) -> list[tuple[float, int]]:
        """The milestones at which it changes, and its power of `factor` from each of them on."""
        allowed = self.milestones[: self.growths_allowed(global_batch)]
        return [(milestone, power) for power, milestone in enumerate(allowed, 1)]

    def decay(self, training: Training) -> Decay:
        """The factor at each position of a training."""

        def decay(epoch: float) -> float:
            reached = sum(milestone <= epoch for milestone in self.milestones)
            grown = sum(first <= epoch for first in training.grown)
            exponent = (self.rate_exponent or 0) * grown
            return float(self.factor) ** (exponent - max(0, reached - grown))

        return decay


class AdaptiveBatch(Settings):
    """Set batch and rate after each epoch to the best for ``h``, the mean square of its gradients.

    With ``n`` examples and ``c = 2 h / (squared_distance strong_convexity)``::

        smooth = n (batch - 1) smoothness + (n - batch) largest_smoothness
        rate   = batch (n - 1) / (2 max(smooth, (n - batch) c))
        batch  = n e / (e + (n - 1) smoothness), where both are equal; 1 if e <= 0
        e      = c - largest_smoothness + smoothness

    Attributes:
        smoothness: largest curvature of the mean loss.
        largest_smoothness: of any example's loss.
        strong_convexity: least curvature of the mean loss.
        squared_distance: of the weights from the best ones, that is to be reached.
        max_batch: the largest batch [examples].

    Source:
        Alfarra et al. 2020, arXiv:2005.01097, for samples without replacement; there ``h`` is of
        all examples at each step's weights, here of an epoch's steps.
    """

    name: Literal["adaptive_batch"] = "adaptive_batch"
    smoothness: Positive
    largest_smoothness: Positive
    strong_convexity: Positive
    squared_distance: Positive
    max_batch: InStep
    growth: ClassVar = "measured"

    def best_batch(self, mean_square: float, num: int) -> float:
        """The batch for a mean square of gradients, of so many examples [examples]."""
        c = 2 * mean_square / (self.squared_distance * self.strong_convexity)
        over = c - self.largest_smoothness + self.smoothness
        return num * over / (over + (num - 1) * self.smoothness) if over > 0 else 1.0

    def best_rate(self, batch: int, mean_square: float, num: int) -> float:
        """The rate at a batch [dimensionless]."""
        c = 2 * mean_square / (self.squared_distance * self.strong_convexity)
        smooth = num * (batch - 1) * self.smoothness + (num - batch) * self.largest_smoothness
        return batch * (num - 1) / max(smooth, (num - batch) * c) / 2

    def decay(self, training: Training) -> Decay:
        """The factor at each position of a training: 1 until a rate is measured."""
        rates = (training.peak_lr, *training.rates)
        starts = training.grown
        return lambda at: rates[sum(start <= at for start in starts)] / training.peak_lr


class Seesaw(Settings):
    """Grow the batch by `factor` where another schedule would divide the rate by it.

    Attributes:
        at: where the batch grows, ascending [fraction of the training].
        factor: the paper's alpha [count].
        rate_exponent: as of `GrowingBatch`; None: -0.5 for steps whose length does not depend on
            the gradient's, as Adam's, 0 for SGD.

    Source:
        arXiv:2510.14717.
    """

    name: Literal["seesaw"] = "seesaw"
    at: Annotated[
        Ascending[Annotated[float, Field(gt=0, lt=1)]],
        Rule("fractions of the training between 0 and 1, ascending, such as [0.5,0.75]"),
    ]
    factor: Factor
    rate_exponent: RateExponent | None

    def to_growing_batch(
        self, batch: int, length: int, unit: str, *, is_normalised: bool | None
    ) -> GrowingBatch:
        """The same with milestones in the unit of the training's length.

        ValueError if the rate is not known.
        """
        ends = [part_of(part, length) for part in self.at]
        if unit == "epochs":
            ends = [end if abs(end - round(end)) > _WHOLE else round(end) for end in ends]
        exponent = self.rate_exponent
        if exponent is None and is_normalised is None:
            msg = (
                "schedule.rate_exponent must be given with an optimizer of your own: -0.5 if the "
                "length of its steps does not depend on the gradient's, as Adam's, or 0, as "
                "SGD's; got null. Write schedule.rate_exponent=-0.5 or 0."
            )
            raise ValueError(msg)
        return GrowingBatch.model_construct(
            name="growing_batch",
            milestones=tuple(ends),
            factor=self.factor,
            growth="milestones",
            max_batch=batch * self.factor ** len(ends),
            rate_exponent=(-0.5 if is_normalised else 0) if exponent is None else exponent,
        )


class BatchWarmup(Settings):
    """Multiply the batch by `factor` once the critical batch has passed that multiple of it.

    The critical batch at an epoch is that of the last position up to there. The batch grows once an
    epoch at most, by ``factor``, and the rate by ``factor ** rate_exponent``. With positions in
    other units it grows at these, as often as the critical batch asks for.

    Attributes:
        positions: where the critical batch is known, ascending; none until it is read [epochs, or
            warmup_unit].
        critical_batch: at each of them, or `measured` until it is read from branches [examples].
        factor: a growth multiplies the batch by it [count].
        rate_exponent: a growth multiplies the rate by this power of `factor`.
        measured_in: the results folder of the branches.
        margin: what counts as not worse there, in the unit of the metric; None: as in the answer
            of `sweeper analysis branches`.

    Source:
        Merrill et al. 2025, arXiv:2505.23971, section 4.
    """

    name: Literal["batch_warmup"] = "batch_warmup"
    positions: Milestones
    critical_batch: Annotated[
        Literal["measured"] | ListOf[Positive],
        Rule("numbers of examples, such as [512,2048], one for each of schedule.positions"),
    ]
    factor: Factor
    rate_exponent: RateExponent
    measured_in: Text | None = None
    margin: NotNegative | None = None

    def to_growing_batch(self, batch: int, epochs: int | None) -> GrowingBatch:
        """The same with milestones; ValueError without a critical batch at each position.

        Args:
            batch: the first [examples].
            epochs: length of the training; None if the positions have another unit [epochs].
        """
        at, known = self.positions, self.critical_batch
        if known == "measured" or not at or len(at) != len(known):
            given = known if known == "measured" else [*known]
            msg = (
                "schedule.critical_batch must have a number for each of schedule.positions; got "
                f"schedule.critical_batch={given}, schedule.positions={[*at]}. Give as many, or "
                "no positions, schedule.critical_batch=measured and +schedule.measured_in=FOLDER."
            )
            raise ValueError(msg)
        milestones: list[float] = []
        largest, end = batch, math.inf if epochs is None else epochs
        for position, following, critical in zip(at, (*at[1:], end), known, strict=True):
            epoch = position
            while epoch < min(following, end) and critical >= largest * self.factor:
                milestones.append(epoch)
                largest *= self.factor
                epoch += epochs is not None
        return GrowingBatch.model_construct(
            name="growing_batch",
            milestones=tuple(milestones),
            factor=self.factor,
            growth="milestones",
            max_batch=largest,
            rate_exponent=self.rate_exponent,
        )


class BatchByRate(Settings):
    """Give each step the batch that its rate asks for, with as many steps as the mean batch.

    With ``x`` the part of the steps after the warmup, ``eta`` the rate and ``S(x)`` its integral
    from ``x`` to 1, ``batch(x) = mean_batch * eta(x) / (2 * sqrt(S(0) * S(x)))``. Trained with is
    the nearest power of `factor` times the first batch, which is the smallest.

    Attributes:
        rate: the schedule of the rate, on the same clock ``x``.
        cooldown: of `wsd`, on this clock too.
        mean_batch: before rounding [examples].
        max_batch: the largest batch [examples].
        factor: batches are powers of it, times the first [count].

    Source:
        arXiv:2607.27731, of which only digests were read; derived in docs/rules.md.
    """

    name: Literal["batch_by_rate"] = "batch_by_rate"
    rate: Literal["constant", "cosine", "linear_decay", "wsd"]
    cooldown: Annotated[float, Field(gt=0, le=1), Rule("a number above 0, at most 1")]
    mean_batch: InStep
    max_batch: InStep
    factor: Factor

    def decay(self, training: Training) -> Decay:
        """The factor at each position of a training."""
        return {
            "constant": Constant(),
            "cosine": Cosine(end_lr=0, clock="start"),
            "linear_decay": Polynomial(power=1, end_lr=0, clock="start", extra_steps=0),
            "wsd": WSD(cooldown=self.cooldown),
        }[self.rate].decay(training)

    def unrounded(self) -> list[float]:
        """The batch in the middle of equal parts of the steps, not rounded [examples]."""
        num = _INTEGRATED_PARTS
        decay = self.decay(Training(epochs=1, warmup_epochs=0, steps_per_epoch=num, peak_lr=1))
        rates = [decay((part + 0.5) / num) for part in range(num)]
        sums = list(accumulate(reversed(rates)))[::-1]  # from the start of each part on
        scale = self.mean_batch * num / (2 * sums[0] ** 0.5)
        left = (rest - rate / 2 for rate, rest in zip(rates, sums, strict=True))
        return [scale * rate / rest**0.5 for rate, rest in zip(rates, left, strict=True)]

    def to_growing_batch(
        self, batch: int, length: float, warmup: float, *, is_in_steps: bool
    ) -> GrowingBatch:
        """The same with changes of the batch at positions of the training, in its length's unit.

        ValueError if the mean batch is not from the first to the largest.
        """
        if not batch <= self.mean_batch <= self.max_batch:
            msg = (
                "schedule.mean_batch must be from batch, the smallest, to schedule.max_batch; got "
                f"schedule.mean_batch={self.mean_batch}, {batch=}, schedule.max_batch="
                f"{self.max_batch}. Change one."
            )
            raise ValueError(msg)
        found = _Planned.model_construct(
            milestones=(), growth="milestones", max_batch=self.max_batch, factor=self.factor
        )
        most = found.growths_allowed(batch)
        relative = (max(1.0, size / batch) for size in self.unrounded())
        powers = [min(most, round(math.log(size, self.factor))) for size in relative]
        sizes = [1 if is_in_steps else self.factor**power for power in powers]
        unit, ends = (length - warmup) / sum(sizes), accumulate(sizes, initial=0)
        parts = zip(ends, (0, *powers), powers, strict=False)
        planned = tuple((warmup + unit * at, new) for at, old, new in parts if new != old)
        return found.model_copy(update={"planned": planned})


class _Planned(GrowingBatch):
    planned: tuple[tuple[float, int], ...] = ()

    def changes(self, global_batch: int) -> list[tuple[float, int]]:
        del global_batch
        return [*self.planned]


class WSD(Settings):
    """Warm up, stay, cool down: ``1 - sqrt(progress)`` over the last part of the training.

    Attributes:
        cooldown: length of the last part [fraction of the training].

    Source:
        arXiv:2508.01483.
    """

    name: Literal["wsd"] = "wsd"
    cooldown: Annotated[float, Field(gt=0, le=1), Rule("a number above 0, at most 1")]

    def decay(self, training: Training) -> Decay:
        """The factor at each position; ValueError if the warmup lasts into the cooldown."""
        length = training.epochs * self.cooldown
        start = training.epochs - length
        if start < training.warmup_epochs:
            msg = (
                "schedule.cooldown must begin after the warmup; got schedule.cooldown="
                f"{self.cooldown}, from epoch {start:g} on, a {training.warmup_epochs:g}-epoch "
                "warmup. Lower one of them."
            )
            raise ValueError(msg)
        return lambda epoch: 1 - math.sqrt(min(1.0, max(0.0, (epoch - start) / length)))


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

    name: Literal["polynomial"] = "polynomial"
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

    name: Literal["cosine"] = "cosine"

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


#: The schedules by which a batch grows.
Growing = AdaptiveBatch | BatchByRate | BatchWarmup | GrowingBatch | Seesaw
_NamedSchedule = Annotated[
    Growing | Constant | Cosine | PeriodicDecay | Polynomial | WSD,
    Field(discriminator="name"),
]
Schedule = Annotated[
    Annotated[_NamedSchedule, Tag(NAMED)] | Annotated[OwnSchedule, Tag(OWN)],
    Discriminator(named_or_own),
]


def build_decay(schedule: Schedule, training: Training, name: str) -> Decay:
    """The decay of a schedule of that name, after checking its factor at a few positions.

    ValueError if a rate would be negative, infinite or not a number.
    """
    assert not isinstance(schedule, BatchWarmup | Seesaw), "it is a growing batch by then"
    decay = schedule.decay(training)
    is_own = isinstance(schedule, OwnSchedule)
    name = f"schedule.{OWN}={schedule.target}" if is_own else f"schedule={name}"
    for part in range(_CHECKED_PARTS + 1):
        epoch = training.epochs * part / _CHECKED_PARTS
        factor = math.nan
        if callable(decay):  # a user's function may return anything
            factor = call_guarded(name, lambda at=epoch: number_or_nan(lambda: decay(at)))
        if not 0 <= factor * training.peak_lr < math.inf:
            given = schedule.model_dump(exclude={"name", "target"}, exclude_none=True)
            msg = (
                f"{name} must give finite rates, 0 or more; got a factor of {factor!r} at epoch "
                f"{epoch:g}{''.join(f', schedule.{k}={v!r}' for k, v in given.items())}. "
                "Correct the schedule's settings."
            )
            raise ValueError(msg)
    return decay


def part_of(part: float, length: int, *, of: int = 1) -> float:
    """That part, or that of 100, of a length, without rounding: 0.1 of 30 is 3."""
    exact = Fraction(str(part)) * length / of
    return exact.numerator if exact.denominator == 1 else float(exact)


def number_or_nan(formula: Callable[[], float]) -> float:
    """The value of a formula or of a user's function; inf if too large, nan if not a number."""
    try:
        value = formula()
    except OverflowError:
        return math.inf
    except ZeroDivisionError:
        return math.nan
    return float(value) if isinstance(value, Real) else math.nan
