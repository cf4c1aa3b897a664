"""The batch plan of a run: micro-batch, accumulation, ranks and steps of each epoch."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from sweeper.spec.batch import BatchSplit, steps_per_epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """How the examples of each epoch are laid out over steps, ranks and micro-batches.

    When the batch grows, the accumulation steps grow; micro-batch and ranks stay the same.

    Attributes:
        split: layout of the first epoch's optimizer steps.
        bn_span: examples normalised together by BatchNorm [examples].
        num_train_examples: examples in the data set [examples].
        factor: each growth multiplies the batch by this [count].
        grown: 0-based epochs that began with a growth, ascending.
    """

    split: BatchSplit
    bn_span: int
    num_train_examples: int
    factor: int = 1
    grown: tuple[int, ...] = ()

    def split_at(self, epoch: int) -> BatchSplit:
        """The layout of a 0-based epoch's optimizer steps."""
        if not self.grown:  # called several times per micro-batch
            return self.split
        times = self.factor ** sum(first <= epoch for first in self.grown)
        steps = self.split.accumulation_steps * times
        return replace(self.split, accumulation_steps=steps)

    def steps_at(self, epoch: int) -> int:
        """Optimizer steps of a 0-based epoch [steps]."""
        return steps_per_epoch(self.num_train_examples, self.split_at(epoch).global_batch)

    def steps_before(self, epoch: int) -> int:
        """Optimizer steps before a 0-based epoch [steps]."""
        return sum(epochs * self.steps_at(first) for first, epochs in self._lengths(epoch))

    def examples_before(self, epoch: int) -> int:
        """Examples trained on before a 0-based epoch [examples]."""
        return sum(
            epochs * self.steps_at(first) * self.split_at(first).global_batch
            for first, epochs in self._lengths(epoch)
        )

    def _lengths(self, epoch: int) -> Iterator[tuple[int, int]]:
        """First epoch and number of epochs at each batch, counting only epochs before this one."""
        ends = [0, *(first for first in self.grown if first < epoch), epoch]
        return ((start, end - start) for start, end in pairwise(ends))

    def batches(self) -> list[tuple[int, int]]:
        """Pairs of the 0-based epoch from which a global batch is used, and that batch."""
        return [(first, self.split_at(first).global_batch) for first in (0, *self.grown)]

    def position(self, step: int) -> float:
        """Position in training of a 0-based optimizer step [epochs]."""
        start = max(first for first in (0, *self.grown) if self.steps_before(first) <= step)
        return start + (step - self.steps_before(start)) / self.steps_at(start)
