"""The learning rate as a pure function of the optimizer step: warmup times decay.

No hidden counter: any step can be asked for, on any layout, after any resume.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Decay = Callable[[float], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class LRSchedule:
    """Linear warmup per optimizer step, then the decay schedule on absolute epochs.

    During warmup, with ``s`` the step and ``S = warmup_epochs * steps_per_epoch``::

        lr(s) = (start + (peak_lr - start) * min(1, s / S)) * decay(s / steps_per_epoch)

    ``S`` need not be whole: nothing is rounded. The decay clock runs through the warmup, so
    milestones are epochs since the start of training.

    Attributes:
        start_lr: learning rate of the first step when there is a warmup [dimensionless].
        peak_lr: learning rate at the end of warmup [dimensionless].
        warmup_epochs: length of the warmup [epochs].
        steps_per_epoch: optimizer steps per epoch [steps].
        decay: factor on the learning rate at a position in training [epochs -> dimensionless].

    Source:
        Goyal et al. 2017, arXiv:1706.02677, section 2.2: the gradual warmup starts at the
        reference rate, adds a constant amount each step and reaches the peak after
        ``warmup_epochs``; milestones are absolute.
    """

    start_lr: float
    peak_lr: float
    warmup_epochs: float
    steps_per_epoch: int
    decay: Decay

    def lr(self, step: int) -> float:
        """Learning rate of the 0-based optimizer step."""
        return self._warmup(step) * self.decay(step / self.steps_per_epoch)

    def series(self, num_steps: int) -> Iterator[float]:
        """Learning rates of the first ``num_steps`` optimizer steps."""
        return map(self.lr, range(num_steps))

    @property
    def warmup_steps(self) -> float:
        """Length of the warmup [steps]; a fraction is kept."""
        return self.warmup_epochs * self.steps_per_epoch

    def _warmup(self, step: int) -> float:
        if step >= self.warmup_steps:
            return self.peak_lr
        return self.start_lr + (self.peak_lr - self.start_lr) * (step / self.warmup_steps)


def constant() -> Decay:
    """Never decay: ``factor = 1``."""
    return lambda epoch: 1.0


def periodic_decay(*, milestones: tuple[float, ...], factor: float) -> Decay:
    """Multiply by ``factor`` at each milestone reached: ``factor ** #{milestones <= epoch}``.

    A milestone of 30 takes effect at the first step of 0-based epoch 30.

    Args:
        milestones: positions in training, ascending [epochs].
        factor: what each milestone multiplies the learning rate by [dimensionless].

    Source:
        McCord & Dash 2021 ("periodic decay", 1/10 at 30, 60, 90); Goyal et al. 2017 (30, 60, 80).
    """
    return lambda epoch: factor ** sum(milestone <= epoch for milestone in milestones)


SCHEDULES: Mapping[str, Callable[..., Decay]] = {
    "constant": constant,
    "periodic_decay": periodic_decay,
}


def build_decay(schedule: Mapping[str, Any]) -> Decay:
    """The decay that a ``schedule`` group describes: ``name`` and its settings.

    Raises:
        ValueError: if the schedule is unknown or its settings do not fit.
    """
    name = schedule["name"]
    if name not in SCHEDULES:
        known = ", ".join(sorted(SCHEDULES))
        msg = (
            f"schedule must be one of {known}; got schedule={name!r}. "
            "Add a schedule in sweeper/domain/schedule.py."
        )
        raise ValueError(msg)
    settings = {key: _frozen(value) for key, value in schedule.items() if key != "name"}
    if "milestones" in settings:
        _check_milestones(settings["milestones"])
    try:
        return SCHEDULES[name](**settings)
    except TypeError as error:
        msg = f"schedule={name} got settings that do not fit: {error}."
        raise ValueError(msg) from None


def silent_milestones(schedule: Mapping[str, Any], epochs: float) -> list[float]:
    """Milestones at or past the end of training: they never fire (McCord & Dash's 90 of 90)."""
    return [m for m in schedule.get("milestones", ()) if m >= epochs]


def _check_milestones(milestones: tuple[float, ...]) -> None:
    if any(m <= 0 for m in milestones) or list(milestones) != sorted(set(milestones)):
        msg = (
            "schedule.milestones must be positive and ascending; "
            f"got schedule.milestones={list(milestones)}. Sort them and remove repeats."
        )
        raise ValueError(msg)


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
