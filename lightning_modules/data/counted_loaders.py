"""Loaders for iterable data sets: in the data's own order, in the run's micro-batches.

Only the count is guaranteed: every micro-batch is full. Which examples it has is up to the data
set, so a single rank trains on it, and a run resumes within an epoch by skipping what it has seen.
"""

import time
from collections.abc import Iterator
from itertools import count, islice
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from lightning_modules.data.batches import TrainingPasses, Windows
from lightning_modules.data.own_loaders import check_loader, collate_nothing, process_settings
from lightning_modules.data.randomness import (
    VALIDATION,
    draw_stream,
    keep_generators,
    seed_generators,
)
from lightning_modules.rank_plan import RankPlan
from sweeper.spec.sentences import several

#: Longest time to iterate over data in order to count them [seconds].
_COUNTING_S = 60.0


def is_iterable(loader: Any) -> bool:
    """Whether a loader's data set has no indices."""
    return isinstance(loader, DataLoader) and isinstance(loader.dataset, IterableDataset)


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
    """An epoch of micro-batches of an iterable data set, for Lightning's Trainer; on a single rank.

    Args:
        loader: the user's; its data set, collate function and worker settings are kept.

    Raises:
        ValueError: if the loader gives batches that cannot be counted, or there are several ranks.
    """

    def __init__(
        self, loader: "DataLoader[Any]", plan: RankPlan, windows: Windows | None = None
    ) -> None:
        check_loader(loader, "train_dataloader", may_iterate=True)
        ranks = plan.split(0).world_size
        if ranks > 1:
            msg = (
                "devices x num_nodes must be 1 with an iterable-only data set, whose examples "
                f"cannot be divided among ranks; got {ranks} ranks. Use a single rank, or give the "
                "data set a length and indices."
            )
            raise ValueError(msg)
        super().__init__(plan, loader.dataset, windows)
        self._loader = loader

    def _make_batches(self, first_step: int, epoch: int) -> Iterator[Any]:
        """The full micro-batches of an epoch from a 0-based step on.

        Raises:
            ValueError: if the data set ends before the epoch does.
        """
        split, num = self._plan.split(epoch), len(self)
        behind = first_step * split.accumulation_steps
        if hasattr(self._loader.dataset, "set_epoch"):
            self._loader.dataset.set_epoch(epoch)  # pyright: ignore[reportAttributeAccessIssue]
        found = -1
        for found, batch in islice(
            _keyed_batches(self._loader, split.micro_batch, self._plan.seed, epoch), num
        ):
            if found >= behind:
                yield batch
        if found + 1 < num:
            msg = (
                f"the data set must give {num} whole micro-batches of {split.micro_batch} examples "
                f"in epoch {epoch + 1}; it ended after {found + 1}. Correct "
                "+data.num_train_examples, or use at most one loading process, as each leaves "
                "out its last, incomplete micro-batch."
            )
            raise ValueError(msg)


class CountedValidation:
    """A user's validation loader of an iterable data set, with the same draws in each pass."""

    def __init__(self, loader: "DataLoader[Any]", *, seed: int) -> None:
        check_loader(loader, "val_dataloader", may_iterate=True)
        self._loader, self._seed = loader, seed

    def __iter__(self) -> Iterator[Any]:
        size = self._loader.batch_size
        keyed = _keyed_batches(self._loader, size or 1, self._seed, VALIDATION, drop_last=False)
        return (batch for _, batch in keyed)


def _keyed_batches(
    loader: "DataLoader[Any]", num_examples: int, *key: int, drop_last: bool = True
) -> Iterator[tuple[int, Any]]:
    """A pass over numbered batches of `num_examples`, each with draws keyed by its number."""
    whole = DataLoader(
        loader.dataset,
        batch_size=num_examples,
        drop_last=drop_last,
        collate_fn=loader.collate_fn,
        generator=torch.Generator().manual_seed(draw_stream(*key) % 2**63),  # seeds its workers
        **process_settings(loader),
    )
    batches: Iterator[Any] = iter(())
    for number in count():
        with keep_generators():
            seed_generators(*key, number)
            batches = batches if number else iter(whole)
            try:
                batch = next(batches)
            except StopIteration:
                return
        yield number, batch
