"""The learning rate as a pure function of the optimizer step: warmup times decay.

No hidden counter: any step can be evaluated, on any layout and after any resume.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from sweeper.spec.batch import BatchPlan
from sweeper.spec.lr_rules import LRRule
from sweeper.spec.schedules import Decay, number_or_nan
from sweeper.spec.sentences import format_value

#: From a 0-based step and the length of the warmup [steps]: how far the rate has climbed by then,
#: 0 at the start and 1 at the peak.
Shape = Callable[[int, float], float]


def gradual(step: int, steps: float) -> float:
    """Climb by the same amount at each step; the first step has the start rate: ``step / steps``.

    Source:
        Goyal et al. 2017, arXiv:1706.02677, section 2.2.
    """
    return step / steps


def ahead(step: int, steps: float) -> float:
    """Like `gradual`, but the last warmup step has the peak rate: ``(step + 1) / steps``.

    Source:
        Horovod's examples/pytorch/pytorch_imagenet_resnet50.py, `adjust_learning_rate`.
    """
    return min(1.0, (step + 1) / steps)


def flat(step: int, steps: float) -> float:
    """Stay at the start rate, then jump to the peak.

    Source:
        Goyal et al. 2017, section 2.2, "constant warmup" (worse than none in their table).
    """
    del step, steps
    return 0.0


def warmup_length(lr_rule: LRRule, *, warmup: float, batch_ratio: float) -> float:
    """Length of the warmup at this batch, ``warmup * batch_ratio**warmup_exponent`` [of its unit].

    Without a `warmup_exponent` the warmup is not scaled. LEGW's exponent is 1: the epochs grow with
    the batch, and the number of steps stays the same.

    Args:
        lr_rule: the rule.
        warmup: length of the warmup at the base batch [of its unit].
        batch_ratio: ``global_batch / base_batch`` [dimensionless].

    Source:
        You et al. 2019, arXiv:1901.08256 (exponent 1).
    """
    if (exponent := lr_rule.warmup_exponent) is None:
        return warmup
    return number_or_nan(lambda: warmup * batch_ratio**exponent)


def warmup_climb(
    start: str, *, base_lr: float, peak_lr: float, workers: int | None
) -> tuple[float, Shape]:
    """The rate that a `warmup_start` begins at, and how it climbs.

    * `base`: gradually from the base rate (Goyal et al. 2017);
    * `zero`: gradually from zero, which is the rate of the first step (MLPerf);
    * `constant`: at the base rate, then a jump (Goyal et al. 2017);
    * `horovod`: from ``peak_lr / workers``. Horovod divides by the number of ranks; here the number
      is part of the experiment, so that the layout changes nothing.

    Raises:
        ValueError: if `workers` is missing for `horovod`, or given without it.
    """
    if (start == "horovod") != (workers is not None):
        msg = (
            "warmup_workers must be given with warmup_start=horovod and only with it; got "
            f"warmup_start={start}, warmup_workers={format_value(workers)}. "
            + ("Write warmup_workers=240." if workers is None else "Remove warmup_workers.")
        )
        raise ValueError(msg)
    if workers is not None:
        return peak_lr / workers, ahead
    return {"base": (base_lr, gradual), "zero": (0.0, gradual), "constant": (base_lr, flat)}[start]


@dataclass(frozen=True, slots=True, kw_only=True)
class LRSchedule:
    """Warmup per optimizer step, then the decay schedule on epochs.

    With ``s`` the step and ``S = warmup_epochs * steps_per_epoch``::

        lr(s) = (start_lr + (peak_lr - start_lr) * shape(s, S)) * decay(s / steps_per_epoch)

    where the shape is 1 from ``S`` on. ``S`` need not be whole: nothing is rounded. The decay's
    clock includes the warmup, so milestones are epochs since the start of training. With
    `decay_steps`, it is ``decay((s - S) / decay_steps)``.

    Attributes:
        start_lr: learning rate of the first step when there is a warmup [dimensionless].
        peak_lr: learning rate at the end of warmup [dimensionless].
        warmup_epochs: length of the warmup [epochs].
        warmup_steps: the same; may have a fraction [steps].
        steps_per_epoch: optimizer steps per epoch [steps].
        decay: factor on the learning rate by position in training [epochs -> dimensionless].
        shape: the climb of the warmup.
        decay_steps: those after the warmup, if the decay counts them as 1; else 0 [steps].
        batch_plan: position of each step if the steps per epoch change; None if they do not.

    Source:
        Goyal et al. 2017, arXiv:1706.02677, section 2.2: the gradual warmup starts at the
        reference rate, adds a constant amount each step and reaches the peak after
        ``warmup_epochs``; milestones are absolute.
    """

    start_lr: float
    peak_lr: float
    warmup_epochs: float
    warmup_steps: float
    steps_per_epoch: float
    decay: Decay
    shape: Shape = gradual
    decay_steps: float = 0
    batch_plan: BatchPlan | None = None

    def lr(self, step: int) -> float:
        """Learning rate of the 0-based optimizer step."""
        at = self.position(step)
        if self.decay_steps:
            at = max(0.0, step - self.warmup_steps) / self.decay_steps
        return self._warmup(max(0, step - self._first_step)) * self.decay(at)

    @property
    def _first_step(self) -> int:
        """Steps before the run's own first, with which its warmup begins [steps]."""
        if self.batch_plan is None:
            return 0
        epoch, step = self.batch_plan.first
        return self.batch_plan.steps_before(epoch) + step

    def position(self, step: int) -> float:
        """Position in training of a 0-based optimizer step [epochs]."""
        if self.batch_plan is None:
            return step / self.steps_per_epoch
        return self.batch_plan.position(step)

    def total_steps(self, epochs: float) -> int:
        """Optimizer steps in this many epochs [steps]."""
        if self.batch_plan is None:
            return round(epochs * self.steps_per_epoch)
        return self.batch_plan.steps_before(math.ceil(epochs))

    def climb_key(self, *, with_length: bool) -> tuple[object, ...]:
        """The few values that determine all rates before the decay; equal values mean equal rates.

        Args:
            with_length: whether to include the length of the warmup in any case, for a decay that
                depends on it.
        """
        is_level = self.warmup_epochs == 0 or self.start_lr == self.peak_lr
        climb = None if is_level else (self.start_lr, self.shape.__name__)
        return self.peak_lr, climb, self.warmup_epochs if climb or with_length else 0

    def _warmup(self, step: int) -> float:
        if step >= self.warmup_steps:
            return self.peak_lr
        climbed = self.shape(step, self.warmup_steps)
        return self.start_lr + (self.peak_lr - self.start_lr) * climbed
