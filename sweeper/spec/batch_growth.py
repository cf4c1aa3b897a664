"""The batch of each epoch: the one asked for, or multiplied at whole epochs."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from sweeper.spec.batch import BatchSplit, steps_per_epoch
from sweeper.spec.config import RunConfig
from sweeper.spec.schedules import GrowingBatch, Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """The batch in the course of a training. Micro-batch and ranks stay; accumulation grows.

    Attributes:
        split: of the first epoch.
        num_train_examples: examples in the data set [examples].
        factor: what each growth multiplies the batch by [count].
        grown: 0-based epochs that began with a growth, ascending.
    """

    split: BatchSplit
    num_train_examples: int
    factor: int = 1
    grown: tuple[int, ...] = ()

    def split_at(self, epoch: int) -> BatchSplit:
        """The layout of a 0-based epoch's optimizer steps."""
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
        """First epoch and number of epochs of each phase, as far as it lies before an epoch."""
        ends = [0, *(first for first in self.grown if first < epoch), epoch]
        return ((start, end - start) for start, end in pairwise(ends))

    def batches(self) -> list[tuple[int, int]]:
        """First 0-based epoch and global batch of each phase."""
        return [(first, self.split_at(first).global_batch) for first in (0, *self.grown)]

    def position(self, step: int) -> float:
        """Where in the training a 0-based optimizer step is taken [epochs]."""
        start = max(first for first in (0, *self.grown) if self.steps_before(first) <= step)
        return start + (step - self.steps_before(start)) / self.steps_at(start)


def factor_of(schedule: Schedule) -> int:
    """What a growth multiplies the batch by; 1 for schedules whose batch does not grow."""
    return schedule.factor if isinstance(schedule, GrowingBatch) else 1


def growths_allowed(schedule: Schedule, global_batch: int) -> int:
    """How often the batch may be multiplied before it would pass `max_batch` [count]."""
    allowed = 0
    if isinstance(schedule, GrowingBatch):
        while global_batch * schedule.factor ** (allowed + 1) <= schedule.max_batch:
            allowed += 1
    return allowed


def planned_growths(schedule: Schedule, global_batch: int) -> tuple[int, ...]:
    """The epochs at which the batch is planned to grow; none where growth is measured."""
    if not isinstance(schedule, GrowingBatch) or schedule.growth == "measured":
        return ()
    return schedule.milestones[: growths_allowed(schedule, global_batch)]


def check_growth(config: RunConfig, warmup_epochs: float) -> None:
    """Refuse a growing batch that cannot be trained.

    Args:
        config: of the run.
        warmup_epochs: length of the warmup at this batch [epochs].

    Raises:
        ValueError: in the users' words.
    """
    schedule = config.schedule
    if not isinstance(schedule, GrowingBatch):
        return
    early = [milestone for milestone in schedule.milestones if milestone < warmup_epochs]
    if early:
        msg = (
            "schedule.milestones must come after the warmup, during which the batch stays; "
            f"got a milestone of {early[0]}, {warmup_epochs:g} warmup epochs. Move it."
        )
        raise ValueError(msg)
    size = config.data.num_train_examples
    if not config.batch <= schedule.max_batch <= size:
        msg = (
            f"schedule.max_batch must be from batch={config.batch} to the epoch's {size} examples; "
            f"got schedule.max_batch={schedule.max_batch}. Change it."
        )
        raise ValueError(msg)
    if config.comm_hook.name == "post_local_sgd":
        msg = (
            "schedule=growing_batch must be with gradients exchanged at every step; got "
            "comm_hook=post_local_sgd. Use comm_hook=all_reduce."
        )
        raise ValueError(msg)
    if config.lr_rule.name == "adascale":
        msg = (
            "schedule=growing_batch must be with a rate that does not follow the batch while "
            "training; got lr_rule=adascale. Use one of the two."
        )
        raise ValueError(msg)
