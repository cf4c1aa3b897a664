"""Loaders for iterable data sets: in the data's own order, in the run's micro-batches.

Only the count is guaranteed: every micro-batch is full. Which examples it has is up to the data
set, and a run resumes within an epoch by skipping what it has seen. Several ranks train on it if it
can be divided among them: by `shard(num_shards, index)`, as Hugging Face's, or by itself, as
WebDataset's with `split_by_node`.
"""

import time
from collections.abc import Iterator
from itertools import count, islice
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from lightning_modules.data.batches import TrainingPasses, Windows
from lightning_modules.data.randomness import (
    VALIDATION,
    draw_stream,
    keep_generators,
    seed_generators,
)
from lightning_modules.data.user_loaders import check_loader, collate_nothing, process_settings
from lightning_modules.rank_plan import RankPlan
from sweeper.spec.method_checks import check_division
from sweeper.spec.sentences import several
from sweeper.spec.values import LARGEST

#: Longest time to iterate over data in order to count them [seconds].
_COUNTING_S = 60.0


def is_iterable(loader: Any) -> bool:
    """Whether a loader's data set has no indices."""
    return isinstance(loader, DataLoader) and isinstance(loader.dataset, IterableDataset)


def most_ranks(dataset: Any) -> int:
    """The most ranks that an iterable data set can be divided among [ranks]."""
    if hasattr(dataset, "shard"):
        return getattr(dataset, "num_shards", LARGEST)
    stages = [getattr(stage, "__name__", "") for stage in getattr(dataset, "pipeline", ())]
    return LARGEST if "split_by_node" in stages else 1


def divide(dataset: Any, plan: RankPlan) -> Any:
    """A rank's part of an iterable data set; ValueError if there are more ranks than parts."""
    ranks = plan.split(0).world_size
    check_division(ranks, most_ranks(dataset), type(dataset).__name__)
    if ranks == 1 or not hasattr(dataset, "shard"):  # WebDataset reads its rank by itself
        return dataset
    return dataset.shard(num_shards=ranks, index=plan.rank)


def count_data(loader: "DataLoader[Any]", *, within_s: float = _COUNTING_S) -> int:
    """The examples of a loader's data set, counted by iterating over it [examples].

    Raises:
        ValueError: if it does not end within `within_s`.
    """
    check_loader(loader, "train_dataloader", may_iterate=True)
    single = DataLoader(
        loader.dataset, batch_size=None, collate_fn=collate_nothing, num_workers=loader.num_workers
    )
    until, num = time.monotonic() + within_s, 0
    for num, _ in enumerate(single, 1):
        if time.monotonic() > until:
            msg = (
                "data.num_train_examples must be given for data without an end, or that take more "
                f"than {within_s:g} s to count; got none, and {type(loader.dataset).__name__} had "
                f"given {several(num, 'example')} by then. Write +data.num_train_examples=N, the "
                "examples of an epoch."
            )
            raise ValueError(msg)
    return num


class CountedBatches(TrainingPasses):
    """An epoch of a rank's micro-batches of an iterable data set, for Lightning's Trainer.

    Args:
        loader: the user's; its data set, collate function and worker settings are kept.

    Raises:
        ValueError: if the loader gives batches that cannot be counted, or cannot be divided.
    """

    def __init__(
        self, loader: "DataLoader[Any]", plan: RankPlan, windows: Windows | None = None
    ) -> None:
        check_loader(loader, "train_dataloader", may_iterate=True)
        super().__init__(plan, loader.dataset, windows)
        self._loader, self._own = loader, divide(loader.dataset, plan)

    def _make_batches(self, first_step: int, epoch: int) -> Iterator[Any]:
        """The full micro-batches of an epoch from a 0-based step on.

        Raises:
            ValueError: if the data set ends before the epoch does.
        """
        split, num = self._plan.split(epoch), len(self)
        behind = self._plan.micro_steps(epoch, first_step)
        if hasattr(self._own, "set_epoch"):
            self._own.set_epoch(epoch)
        found, place = -1, (self._plan.rank, split.world_size)
        keyed = _keyed_batches(
            self._loader, self._own, split.micro_batch, self._plan.seed, epoch, place=place
        )
        for found, batch in islice(keyed, num):
            if found >= behind:
                yield batch
        if found + 1 < num:
            msg = (
                f"the data set must give {num} whole micro-batches of {split.micro_batch} examples "
                f"in epoch {epoch + 1} on rank {self._plan.rank}; it ended after {found + 1}. "
                "Correct +data.num_train_examples, or use at most one loading process, as each "
                "leaves out its last, incomplete micro-batch."
            )
            raise ValueError(msg)


class CountedValidation:
    """A rank's part of a user's iterable validation data, with the same draws in each pass.

    Each rank reads all of the data, so that its batches are those of one rank, and evaluates its
    part of them. Data that divide themselves give it batches of their own.

    Attributes:
        numbers: of each batch among those of all ranks.
    """

    def __init__(self, loader: "DataLoader[Any]", plan: RankPlan) -> None:
        check_loader(loader, "val_dataloader", may_iterate=True)
        divide(loader.dataset, plan)
        self._loader, self._plan = loader, plan
        place = plan.rank, plan.split(0).world_size
        is_whole = place[1] == 1 or hasattr(loader.dataset, "shard")
        self._reads, self._own = ((0, 1), place) if is_whole else (place, (0, 1))
        self.numbers = range(place[0], LARGEST, place[1])

    def __iter__(self) -> Iterator[Any]:
        size, key = self._loader.batch_size or 1, (self._plan.seed, VALIDATION)
        dataset, reads = self._loader.dataset, self._reads
        keyed = _keyed_batches(self._loader, dataset, size, *key, place=reads, drop_last=False)
        rank, ranks = self._own
        return (batch for _, batch in islice(keyed, rank, None, ranks))


def _keyed_batches(
    loader: "DataLoader[Any]",
    dataset: Any,
    num_examples: int,
    *key: int,
    place: tuple[int, int],
    drop_last: bool = True,
) -> Iterator[tuple[int, Any]]:
    """A pass over numbered batches of `num_examples`, each with draws keyed by its number.

    The place is the rank, and their number. The first draws are the same on all ranks: data that
    are divided after they were shuffled need one order.
    """
    rank, ranks = place
    whole = DataLoader(
        dataset,
        batch_size=num_examples,
        drop_last=drop_last,
        collate_fn=loader.collate_fn,
        generator=torch.Generator().manual_seed(draw_stream(*key) % 2**63),  # seeds its workers
        **process_settings(loader),
    )
    batches: Iterator[Any] = iter(())
    for number in count():
        with keep_generators():
            seed_generators(*key, number * ranks + rank * (number > 0))
            batches = batches if number else iter(whole)
            try:
                batch = next(batches)
            except StopIteration:
                return
        yield number, batch
