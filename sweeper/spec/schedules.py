"""Decay schedules: the factor on the learning rate at a position in training."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

#: The factor at a position in training [epochs -> dimensionless].
Decay = Callable[[float], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What a decay may depend on.

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


def constant(training: Training) -> Decay:
    """Never decay: ``factor = 1``."""
    del training
    return lambda epoch: 1.0


def periodic_decay(training: Training, *, milestones: tuple[float, ...], factor: float) -> Decay:
    """Multiply by ``factor`` at each milestone reached: ``factor ** #{milestones <= epoch}``.

    A milestone of 30 takes effect at the first step of 0-based epoch 30.

    Args:
        training: does not matter here.
        milestones: positions in training, ascending [epochs].
        factor: what each milestone multiplies the learning rate by [dimensionless].

    Source:
        McCord & Dash 2021 ("periodic decay", 1/10 at 30, 60, 90); Goyal et al. 2017 (30, 60, 80).

    Raises:
        ValueError: if the milestones are not ascending.
    """
    del training
    _check_milestones(milestones)
    return lambda epoch: factor ** sum(milestone <= epoch for milestone in milestones)


def growing_batch(
    training: Training, *, milestones: tuple[float, ...], factor: int, growth: str, max_batch: int
) -> Decay:
    """Multiply the batch at milestones instead of dividing the rate, as far as the batch may grow.

    The rate is divided by ``factor`` at each milestone that no growth of the batch stands for:
    ``factor ** -max(0, #{milestones <= epoch} - #{grown <= epoch})``.

    Args:
        training: when the batch grew.
        milestones: positions in training, ascending [epochs].
        factor: what a growth multiplies the batch by, and what a decay divides the rate by [count].
        growth: what decides when the batch grows; its epochs are in `training`.
        max_batch: the largest batch [examples].

    Source:
        Smith et al. 2017, arXiv:1711.00489: the noise of SGD is as ``lr / global_batch``, so both
        ways lower it alike.
    """
    del growth, max_batch
    _check_milestones(milestones)

    def decay(epoch: float) -> float:
        reached = sum(milestone <= epoch for milestone in milestones)
        grown = sum(first <= epoch for first in training.grown)
        return float(factor) ** -max(0, reached - grown)

    return decay


def polynomial(
    training: Training, *, power: float, end_lr: float, clock: str, extra_steps: float
) -> Decay:
    """Fall along a power to the end rate.

    ``lr = end_lr + (peak_lr - end_lr) * (1 - progress)**power``

    Args:
        training: its length, warmup and peak.
        power: 1 is a straight line, 2 LARS's parabola [dimensionless].
        end_lr: learning rate at the end [dimensionless].
        clock: `start`: progress counts from the start of training, warmup included; `warmup`: from
            the end of the warmup.
        extra_steps: the end lies this far past the last step [steps]; MLPerf's is 1.

    Source:
        You et al. 2017, arXiv:1708.03888 (power 2); mlcommons/training
        image_classification/tensorflow2/lars_util.py (clock `warmup`, one extra step).
    """
    _check_end_lr(end_lr, training.peak_lr)
    progress = _progress(training, clock=clock, extra_steps=extra_steps)
    end = end_lr / training.peak_lr
    return lambda epoch: end + (1 - end) * (1 - progress(epoch)) ** power


def cosine(training: Training, *, end_lr: float, clock: str) -> Decay:
    """Fall along half a cosine to the end rate.

    ``lr = end_lr + (peak_lr - end_lr) * (1 + cos(pi * progress)) / 2``

    Args:
        training: its length, warmup and peak.
        end_lr: learning rate at the end [dimensionless].
        clock: as for `polynomial`.

    Source:
        Loshchilov & Hutter 2016, arXiv:1608.03983, without restarts.
    """
    _check_end_lr(end_lr, training.peak_lr)
    progress = _progress(training, clock=clock, extra_steps=0)
    end = end_lr / training.peak_lr
    return lambda epoch: end + (1 - end) * (1 + math.cos(math.pi * progress(epoch))) / 2


SCHEDULES: Mapping[str, Callable[..., Decay]] = {
    "constant": constant,
    "growing_batch": growing_batch,
    "periodic_decay": periodic_decay,
    "polynomial": polynomial,
    "cosine": cosine,
}


def _progress(training: Training, *, clock: str, extra_steps: float) -> Callable[[float], float]:
    """The part of the decay that is behind, from 0 to 1, at a position in training [epochs]."""
    starts = {"start": 0.0, "warmup": training.warmup_epochs}
    if clock not in starts:
        msg = (
            f"schedule.clock must be one of start, warmup; got schedule.clock={clock!r}. "
            "Count the decay from the start of training, or from the end of the warmup."
        )
        raise ValueError(msg)
    start = starts[clock]
    length = training.epochs - start + extra_steps / training.steps_per_epoch
    return lambda epoch: min(1.0, max(0.0, (epoch - start) / length))


def _check_milestones(milestones: tuple[float, ...]) -> None:
    if any(m <= 0 for m in milestones) or list(milestones) != sorted(set(milestones)):
        msg = (
            "schedule.milestones must be positive and ascending; "
            f"got schedule.milestones={list(milestones)}. Sort them and remove repeats."
        )
        raise ValueError(msg)


def _check_end_lr(end_lr: float, peak_lr: float) -> None:
    if not 0 <= end_lr <= peak_lr:
        msg = (
            f"schedule.end_lr must be from 0 to the peak rate; got schedule.end_lr={end_lr}, "
            f"peak rate {peak_lr:g}. Lower schedule.end_lr."
        )
        raise ValueError(msg)
