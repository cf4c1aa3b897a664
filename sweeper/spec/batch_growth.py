"""The batch of each epoch: the one asked for, or multiplied at whole epochs."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from sweeper.spec.batch import BatchSplit, steps_per_epoch

GROWTHS = ("measured", "milestones")


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


def factor_of(schedule: Mapping[str, Any]) -> int:
    """What a growth multiplies the batch by; 1 for schedules whose batch does not grow."""
    return schedule["factor"] if schedule["name"] == "growing_batch" else 1


def growths_allowed(schedule: Mapping[str, Any], global_batch: int) -> int:
    """How often the batch may be multiplied before it would pass `max_batch` [count]."""
    allowed, factor = 0, factor_of(schedule)
    while factor > 1 and global_batch * factor ** (allowed + 1) <= schedule["max_batch"]:
        allowed += 1
    return allowed


def planned_growths(schedule: Mapping[str, Any], global_batch: int) -> tuple[int, ...]:
    """The epochs at which the batch is planned to grow; none where growth is measured."""
    if schedule["name"] != "growing_batch" or schedule["growth"] == "measured":
        return ()
    allowed = growths_allowed(schedule, global_batch)
    return tuple(int(milestone) for milestone in schedule["milestones"][:allowed])


def check_growth(config: Mapping[str, Any], warmup_epochs: float) -> None:
    """Refuse a growing batch that cannot be trained.

    Args:
        config: the resolved config.
        warmup_epochs: length of the warmup at this batch [epochs].

    Raises:
        ValueError: in the users' words.
    """
    schedule = config["schedule"]
    if schedule["name"] != "growing_batch":
        return
    if schedule["growth"] not in GROWTHS:
        msg = (
            f"schedule.growth must be one of {', '.join(GROWTHS)}; "
            f"got schedule.growth={schedule['growth']!r}."
        )
        raise ValueError(msg)
    _check_whole("factor", schedule["factor"], 2, "the accumulation steps are multiplied by it")
    _check_whole("max_batch", schedule["max_batch"], config["batch"], "the batch it starts with")
    for milestone in schedule["milestones"]:
        _check_whole("milestones", milestone, 1, "the batch changes between two epochs")
        if milestone < warmup_epochs:
            msg = (
                "schedule.milestones must come after the warmup, during which the batch stays; "
                f"got a milestone of {milestone}, {warmup_epochs:g} warmup epochs. Move it."
            )
            raise ValueError(msg)
    _check_beside(config)


def _check_whole(name: str, value: Any, lowest: int, why: str) -> None:
    is_whole = isinstance(value, int | float) and value == int(value)
    if isinstance(value, bool) or not is_whole or value < lowest:
        msg = (
            f"schedule.{name} must hold whole numbers, {lowest} or more ({why}); "
            f"got schedule.{name}={value!r}."
        )
        raise ValueError(msg)


def _check_beside(config: Mapping[str, Any]) -> None:
    size, cap = config["data"]["num_train_examples"], config["schedule"]["max_batch"]
    if cap > size:
        msg = (
            f"schedule.max_batch must not exceed the epoch's {size} examples; "
            f"got schedule.max_batch={cap}. Lower it."
        )
        raise ValueError(msg)
    if config["comm_hook"]["name"] == "post_local_sgd":
        msg = (
            "schedule=growing_batch must be with gradients exchanged at every step; got "
            "comm_hook=post_local_sgd. Use comm_hook=all_reduce."
        )
        raise ValueError(msg)
    if config["lr_rule"]["name"] == "adascale":
        msg = (
            "schedule=growing_batch must be with a rate that does not follow the batch while "
            "training; got lr_rule=adascale. Use one of the two."
        )
        raise ValueError(msg)
