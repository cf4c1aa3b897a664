"""Micro-batches of one rank: slices of the epoch's global batches, the same on every layout."""

from collections.abc import Iterable, Iterator
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from lightning_modules.data.randomness import epoch_order
from lightning_modules.rank_plan import RankPlan


class Data(Protocol):
    """A data set whose epochs are functions of (seed, epoch).

    Attributes:
        input_shape: shape of one example, without the batch dimension.
        num_classes: classes to tell apart [count].
        num_train_examples: examples per epoch [examples].
        num_val_examples: examples of the validation set [examples].
    """

    input_shape: tuple[int, ...]
    num_classes: int
    num_train_examples: int

    @property
    def num_val_examples(self) -> int:
        """Examples of the validation set [examples]."""
        ...

    def set_epoch(self, seed: int, epoch: int) -> None:
        """Make the training examples of a 0-based epoch ready."""
        ...

    def train_examples(self, examples: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and labels of the epoch's examples at these positions, shape (n,)."""
        ...

    def val_examples(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Inputs and labels of the validation examples from start to stop."""
        ...


@runtime_checkable
class Streamed(Protocol):
    """Data too large for memory: batches are prepared ahead of use, in the requested order."""

    def train_stream(self, asked: Iterable[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """The results of `train_examples` for each of these positions."""
        ...

    def val_stream(self, asked: Iterable[tuple[int, int]]) -> Iterator[tuple[Tensor, Tensor]]:
        """The results of `val_examples` for each start and stop."""
        ...


@runtime_checkable
class Settled(Protocol):
    """Data that needs to know where it trains, before the first epoch."""

    def settle(self, device: torch.device, *, ranks_on_node: int) -> None:
        """Move to the device, or start workers for it.

        Args:
            device: what this rank trains on.
            ranks_on_node: ranks that share this machine [count].
        """
        ...


def val_batches(data: Data, bounds: Iterable[tuple[int, int]]) -> Iterator[tuple[Tensor, Tensor]]:
    """Inputs and labels of the validation examples between each start and stop."""
    if isinstance(data, Streamed):
        return data.val_stream(bounds)
    return (data.val_examples(start, stop) for start, stop in bounds)


class MicroBatches:
    """An epoch of micro-batches for one rank, for Lightning's Trainer.

    Step ``t`` takes the ``t``-th slice of ``global_batch`` of the epoch's order, in micro-batches
    that go to the ranks as the plan says. The last, incomplete global batch of an epoch
    is not trained on, so no short accumulation window exists (Lightning#19987).

    Args:
        data: the data set.
        plan: of the run's batches, and of this rank's part in them.
        seed: the run's seed.
    """

    def __init__(self, data: Data, plan: RankPlan, *, seed: int) -> None:
        self._data, self._plan, self._seed = data, plan, seed
        self._epoch = 0

    @property
    def sampler(self) -> "MicroBatches":
        """Where Lightning looks for `set_epoch`."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Go to a 0-based epoch; Lightning calls it before iterating."""
        self._epoch = epoch

    def __len__(self) -> int:
        return self._plan.steps(self._epoch) * self._plan.split(self._epoch).accumulation_steps

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        # A generator, so that the epoch is read at the first batch: after a resume Lightning makes
        # the iterator first and calls `set_epoch` later.
        self._data.set_epoch(self._seed, self._epoch)
        if isinstance(self._data, Streamed):
            yield from self._data.train_stream(self.positions())
        else:
            yield from map(self._data.train_examples, self.positions())

    def positions(self) -> Iterator[Tensor]:
        """Positions of the examples of each micro-batch that is left, shape (micro_batch,)."""
        plan, epoch = self._plan, self._epoch
        split, steps = plan.split(epoch), plan.steps(epoch)
        order = epoch_order(self._seed, epoch, self._data.num_train_examples)
        whole = torch.from_numpy(order)[: steps * split.global_batch]
        mine = whole.view(steps, -1, split.micro_batch)[:, list(plan.micro_batches(epoch))]
        return iter(mine[plan.first_step(epoch) :].reshape(-1, split.micro_batch))
