"""The learning rate as a pure function of the optimizer step: warmup times decay.

No hidden counter: any step can be evaluated, on any layout, after any resume.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sweeper.spec.batch_plan import BatchPlan
from sweeper.spec.lr_rules import LRRule
from sweeper.spec.schedules import Decay, number

#: How far along the climb a 0-based step stands, 0 at the start and 1 at the peak, given the
#: step and the length of the warmup [steps].
Shape = Callable[[int, float], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Warmup:
    """Where a warmup starts and how it climbs.

    Attributes:
        start_lr: learning rate that the climb starts from [dimensionless].
        shape: the climb.
    """

    start_lr: float
    shape: Shape


def gradual(step: int, steps: float) -> float:
    """Climb by the same amount each step; the first step is at the start: ``step / steps``.

    Source:
        Goyal et al. 2017, arXiv:1706.02677, section 2.2.
    """
    return step / steps


def ahead(step: int, steps: float) -> float:
    """Like `gradual`, but the last step of the warmup is at the peak: ``(step + 1) / steps``.

    Source:
        Horovod's examples/pytorch/pytorch_imagenet_resnet50.py, `adjust_learning_rate`.
    """
    return min(1.0, (step + 1) / steps)


def flat(step: int, steps: float) -> float:
    """Stay at the start, then jump to the peak.

    Source:
        Goyal et al. 2017, section 2.2, "constant warmup" (worse than none in their table).
    """
    del step, steps
    return 0.0


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
    exponent = lr_rule.warmup_exponent
    return number(lambda: warmup * batch_ratio**exponent)


def warmup(start: str, *, base_lr: float, peak_lr: float, workers: int | None) -> Warmup:
    """The warmup that a `warmup_start` names.

    * `base`: gradually from the base rate (Goyal et al. 2017);
    * `zero`: gradually from zero, which the first step trains at (MLPerf);
    * `constant`: at the base rate, then a jump (Goyal et al. 2017);
    * `horovod`: from ``peak_lr / workers``. Horovod divides by the ranks it happens to run on;
      here the number is stated with the experiment, so that the layout changes nothing.

    Raises:
        ValueError: if `workers` is missing for `horovod`, or given without it.
    """
    if (start == "horovod") != (workers is not None):
        msg = (
            "warmup_workers must be given with warmup_start=horovod and only with it; got "
            f"warmup_start={start}, warmup_workers={workers}. "
            + ("Write warmup_workers=240." if workers is None else "Remove warmup_workers.")
        )
        raise ValueError(msg)
    if workers is not None:
        return Warmup(start_lr=peak_lr / workers, shape=ahead)
    starts: Mapping[str, Warmup] = {
        "base": Warmup(start_lr=base_lr, shape=gradual),
        "zero": Warmup(start_lr=0.0, shape=gradual),
        "constant": Warmup(start_lr=base_lr, shape=flat),
    }
    return starts[start]


@dataclass(frozen=True, slots=True, kw_only=True)
class LRSchedule:
    """Warmup per optimizer step, then the decay schedule on epochs.

    With ``s`` the step and ``S = warmup_epochs * steps_per_epoch``::

        lr(s) = (start_lr + (peak_lr - start_lr) * shape(s, S)) * decay(s / steps_per_epoch)

    and 1 for the shape from ``S`` on. ``S`` need not be whole: nothing is rounded. The decay clock
    runs through the warmup, so milestones are epochs since the start of training.

    Attributes:
        start_lr: learning rate of the first step when there is a warmup [dimensionless].
        peak_lr: learning rate at the end of warmup [dimensionless].
        warmup_epochs: length of the warmup [epochs].
        steps_per_epoch: optimizer steps per epoch [steps].
        decay: factor on the learning rate at a position in training [epochs -> dimensionless].
        shape: the climb of the warmup.
        batch_plan: where steps stand when their number per epoch changes; None: it does not.

    Source:
        Goyal et al. 2017, arXiv:1706.02677, section 2.2: the gradual warmup starts at the
        reference rate, adds a constant amount each step and reaches the peak after
        ``warmup_epochs``; milestones are absolute.
    """

    start_lr: float
    peak_lr: float
    warmup_epochs: float
    steps_per_epoch: float
    decay: Decay
    shape: Shape = gradual
    batch_plan: BatchPlan | None = None

    def lr(self, step: int) -> float:
        """Learning rate of the 0-based optimizer step."""
        return self._warmup(step) * self.decay(self.position(step))

    def position(self, step: int) -> float:
        """Where in the training a 0-based optimizer step is taken [epochs]."""
        if self.batch_plan is None:
            return step / self.steps_per_epoch
        return self.batch_plan.position(step)

    def total_steps(self, epochs: int) -> int:
        """Optimizer steps in this many epochs [steps]."""
        if self.batch_plan is None:
            return round(epochs * self.steps_per_epoch)
        return self.batch_plan.steps_before(epochs)

    @property
    def warmup_steps(self) -> float:
        """Length of the warmup [steps]; a fraction is kept."""
        return self.warmup_epochs * self.steps_per_epoch

    def before_decay(self, *, with_length: bool) -> tuple[object, ...]:
        """What the rates before the decay are, as few numbers; equal if every step's rate is.

        Args:
            with_length: whether the decay depends on the length of the warmup.
        """
        is_level = self.warmup_epochs == 0 or self.start_lr == self.peak_lr
        climb = None if is_level else (self.start_lr, self.shape.__name__)
        return self.peak_lr, climb, self.warmup_epochs if climb or with_length else 0

    def _warmup(self, step: int) -> float:
        if step >= self.warmup_steps:
            return self.peak_lr
        climbed = self.shape(step, self.warmup_steps)
        return self.start_lr + (self.peak_lr - self.start_lr) * climbed
