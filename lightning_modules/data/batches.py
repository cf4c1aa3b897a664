"""Micro-batches of a rank: slices of the epoch's global batches, the same on every layout."""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from lightning_modules.data.randomness import epoch_order, seed_draws
from lightning_modules.rank_plan import RankPlan
from sweeper.spec.batch import BatchSplit

#: Wraps a pass over the micro-batches of a 0-based epoch, from a 0-based step on.
Windows = Callable[[Iterator[Any], int, int], Iterator[Any]]


#: Examples of a validation batch where a user's data say no number of their own [examples].
VAL_BATCH = 64


class IndexedData(Protocol):
    """A data set whose epochs are functions of (seed, epoch).

    It may also have methods that are looked for by their names:
    `settle(device, *, ranks_on_node)`, called before the first epoch, moves the data to the device
    that trains, or starts workers for it;
    `train_stream(positions)` and `val_stream(bounds)` give the results of `train_examples` and
    `val_examples` for each of these, prepared ahead of use;
    `order(epoch)` gives an order of its own, shape (num_train_examples,).

    Attributes:
        input_shape: shape of an example, without the batch dimension.
        num_classes: classes to tell apart [count].
        num_train_examples: examples per epoch [examples].
        num_val_examples: examples of the validation set [examples].
    """

    input_shape: tuple[int, ...]
    num_classes: int
    num_train_examples: int
    num_val_examples: int

    def set_epoch(self, seed: int, epoch: int) -> None:
        """Make the training examples of a 0-based epoch ready."""
        ...

    def train_examples(self, examples: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and labels of the epoch's examples at these positions, shape (n,)."""
        ...

    def val_examples(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Inputs and labels of the validation examples from start to stop."""
        ...


class Requests:
    """What a DataLoader is asked for in its next pass, in order.

    Attributes:
        pending: set before the pass begins; read ahead of use.
    """

    def __init__(self) -> None:
        self.pending: Iterator[Any] = iter(())

    def __iter__(self) -> Iterator[Any]:
        return self.pending


class ValBatches:
    """A rank's batches of the validation examples between each start and stop.

    Lightning's loop has to run on every rank: a rank without examples evaluates the first,
    which is not counted.

    Attributes:
        sizes: examples of each batch, 0 if they are not this rank's own and do not count
            [examples].
        numbers: the first example of each.
    """

    def __init__(self, data: IndexedData, bounds: Iterable[tuple[int, int]]) -> None:
        self._data, own = data, list(bounds)
        self._bounds, self.sizes = own or [(0, 1)], [stop - start for start, stop in own] or [0]
        self.numbers = [start for start, _ in self._bounds]

    def shorten(self, batches: int, examples: int) -> None:
        """Keep only the first batches, and the first examples of each."""
        kept = self._bounds[:batches]
        self._bounds = [(start, min(stop, start + examples)) for start, stop in kept]
        self.sizes = [min(size, examples) for size in self.sizes[:batches]]

    def __len__(self) -> int:
        return len(self._bounds)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        stream: Any = getattr(self._data, "val_stream", None)
        if stream is not None:
            return stream(self._bounds)
        return (self._data.val_examples(start, stop) for start, stop in self._bounds)


class TrainingPasses:
    """Passes over a rank's micro-batches, for Lightning's Trainer and for hooks of a module.

    A hook may read the training data too, for their mean or a bank of features. Only the pass that
    is trained on, the first after `set_epoch`, skips the steps already taken in a resumed epoch. A
    loader whose epoch was never set was made by a hook, and gives the first epoch.

    A user's module may draw as it likes, from its hooks before the transfer to the device onwards:
    the generators are seeded by the position of each micro-batch. So the draws are the same on
    every layout with this micro-batch, and after every resume. Our own modules key their draws by
    example, so nothing is seeded for them.

    Args:
        plan: the run's batch plan.
        dataset: where a user's module looks for its data set.
        windows: looks ahead at the micro-batches of each step of a 0-based epoch.
    """

    def __init__(self, plan: RankPlan, dataset: Any, windows: Windows | None = None) -> None:
        self._plan, self.dataset, self._windows = plan, dataset, windows
        self._epoch: int | None = None
        self._is_trained_on = False

    @property
    def sampler(self) -> Self:
        """Where Lightning looks for `set_epoch`."""
        return self

    @property
    def batch_size(self) -> int:
        """Examples of a micro-batch, for a user's module [examples]."""
        return self._plan.split(self._epoch or 0).micro_batch

    def set_epoch(self, epoch: int) -> None:
        """Go to a 0-based epoch; Lightning calls it before iterating."""
        self._epoch, self._is_trained_on = epoch, True

    def __len__(self) -> int:
        # Lightning asks before it says where a resumed run begins; its batch may have grown by then
        epoch = self._plan.resumed_at[0] if self._epoch is None else self._epoch
        return self._plan.micro_steps(epoch, self._plan.steps(epoch))

    def __iter__(self) -> Iterator[Any]:
        # A generator, so that the epoch is read at the first batch: after a resume Lightning makes
        # the iterator first and calls `set_epoch` later.
        epoch = self._epoch or 0
        is_trained_on, self._is_trained_on = self._is_trained_on, False
        first_step = self._plan.first_step(epoch) if is_trained_on else 0
        batches = self._make_batches(first_step, epoch)
        if self._windows and self._epoch is not None:
            batches = self._windows(batches, epoch, first_step)
        if not self._plan.has_own_module:
            yield from batches
            return
        behind = self._plan.micro_steps(epoch, first_step)
        for micro_step, batch in enumerate(batches, behind):
            seed_draws(self._plan.seed, epoch, self._plan.first_example(epoch, micro_step))
            yield batch

    def _make_batches(self, first_step: int, epoch: int) -> Iterator[Any]:
        """The micro-batches of an epoch from a 0-based step on."""
        raise NotImplementedError


class MicroBatches(TrainingPasses):
    """An epoch of a rank's micro-batches, for Lightning's Trainer.

    Step ``t`` takes the ``t``-th slice of ``global_batch`` of the epoch's order, in micro-batches
    that go to the ranks as the plan says. The last, incomplete global batch of an epoch
    is not trained on, so no short accumulation window exists (Lightning#19987).
    """

    def __init__(
        self, data: IndexedData, plan: RankPlan, *, seed: int, windows: Windows | None = None
    ) -> None:
        super().__init__(plan, getattr(data, "dataset", data), windows)
        self._data, self._seed = data, seed

    def _make_batches(self, first_step: int, epoch: int) -> Iterator[Any]:
        self._data.set_epoch(self._seed, epoch)
        positions = self.positions(first_step)
        stream: Any = getattr(self._data, "train_stream", None)
        return map(self._data.train_examples, positions) if stream is None else stream(positions)

    def positions(self, first_step: int = 0) -> Iterator[Tensor]:
        """Positions of the examples of each micro-batch from a step on, shape (micro_batch,)."""
        plan, epoch = self._plan, self._epoch or 0
        own_order: Any = getattr(self._data, "order", None)
        if own_order is None:
            order = epoch_order(self._seed, epoch, self._data.num_train_examples)
        else:
            order = own_order(epoch)
        if plan.filled:
            steps = range(plan.micro_steps(epoch, first_step), len(self))
            return (torch.from_numpy(order[slice(*plan.places(epoch, at))]) for at in steps)
        micro_batch, parts = plan.split(epoch).micro_batch, list[Tensor]()
        for first, end in plan.phases(epoch):
            start, stop = plan.examples_in(epoch, first), plan.examples_in(epoch, end)
            split = plan.split(epoch, first)  # of a branch's, also for what its parent trained on
            in_step = split.global_batch // micro_batch
            whole = torch.from_numpy(order[start:stop]).view(-1, in_step, micro_batch)
            mine = whole[max(0, first_step - first) :, list(plan.micro_batches(epoch, first))]
            parts.append(mine.reshape(-1, micro_batch))
        return chain.from_iterable(parts)


def val_bounds(
    num_examples: int, *, split: BatchSplit, rank: int, in_whole_micro_batches: bool
) -> Iterator[tuple[int, int]]:
    """Start and stop of each of a rank's validation micro-batches [examples].

    Args:
        num_examples: to evaluate, over all ranks [examples].
        split: micro-batch and ranks.
        rank: this process among the ranks.
        in_whole_micro_batches: give ranks whole micro-batches instead of equal shares, so that each
            pass has the same examples on every number of ranks.
    """
    unit = split.micro_batch if in_whole_micro_batches else 1
    units = -(-num_examples // unit)
    start, stop = (
        min(num_examples, units * end // split.world_size * unit) for end in (rank, rank + 1)
    )
    for first in range(start, stop, split.micro_batch):
        yield first, min(first + split.micro_batch, stop)
