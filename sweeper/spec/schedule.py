"""The learning rate as a pure function of the optimizer step: warmup times decay.

No hidden counter: any step can be evaluated, on any layout, after any resume.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from sweeper.spec.batch_plan import BatchPlan
from sweeper.spec.schedules import Decay
from sweeper.spec.warmup import Shape, gradual


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
        climbed = self.shape(step, self.warmup_steps)
        return self.start_lr + (self.peak_lr - self.start_lr) * climbed
