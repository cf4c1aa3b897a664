"""Where a run is evaluated or saved: at the first step at or after each multiple of an interval."""

from dataclasses import dataclass
from fractions import Fraction

from sweeper.spec.batch import BatchPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """The multiples of an interval, as steps of a run; its last step is always one of them.

    They are counted in examples, so that runs of all batches have them at the same places, up to a
    step, on every layout.

    Attributes:
        every: a number of examples, a part of an epoch below 1, or None for the ends of epochs.
        plan: the batches of the run.
        epochs: length of the run, its last epoch included [epochs].
    """

    every: float | None
    plan: BatchPlan
    epochs: int

    def is_at(self, epoch: int, step: int) -> bool:
        """Whether there is a mark after this many steps of a 0-based epoch."""
        is_end = step == self.plan.steps_at(epoch)
        if self.every is None or (is_end and epoch == self.epochs - 1):
            return is_end
        return self._passed(epoch, step) > self._passed(epoch, step - 1)

    def count_after(self, epoch: int, step: int) -> int:
        """Marks that are to come after this many steps of a 0-based epoch, as far as known."""
        if self.every is None:
            return self.epochs - epoch - (step == self.plan.steps_at(epoch))
        last = self.epochs - 1
        steps = self.plan.steps_before(self.epochs) - self.plan.steps_before(epoch) - step
        at_end = self._passed(last, self.plan.steps_at(last))
        is_apart = at_end == self._passed(last, self.plan.steps_at(last) - 1)
        return max(0, min(steps, at_end - self._passed(epoch, step) + is_apart))

    def _passed(self, epoch: int, step: int) -> int:
        """Multiples of the interval up to this many steps of a 0-based epoch."""
        assert self.every is not None, "epochs need no multiples"
        if self.every < 1:
            examples, whole = self.plan.examples_in(epoch, step), self.plan.whole_examples_at(epoch)
            return (epoch + Fraction(examples, whole)) // Fraction(str(self.every))
        return self.plan.examples_before(epoch, step) // int(self.every)
