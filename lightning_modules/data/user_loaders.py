"""Loaders of a user's own DataModule, rebuilt around the run's order of examples.

The user's loader supplies the data set, the collate function and the worker settings; the plan
decides which examples a micro-batch has. The random draws of an example are keyed by (seed, epoch,
index, how often the index came before): torch's, Python's and NumPy's generators are seeded before
`dataset[index]`, in whichever process makes it; their state afterwards has no meaning. A sampler
may give keys other than numbers, such as pairs or slices; their index is their place in the pass.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
)

from lightning_modules.data.batches import Requests
from lightning_modules.data.randomness import (
    VALIDATION,
    draw_stream,
    epoch_order,
    keep_generators,
    seed_generators,
)
from sweeper.upstream.torchs import set_worker_dataset

_COLLATE = 1  # appended to the words of a batch's first example: draws of the collate function


class BatchRequest(NamedTuple):
    """An example to be loaded.

    Attributes:
        words: seed its draws: epoch, index and, if the index came before in the epoch, 1 more than
            how often.
        key: of the example in the data set.
    """

    words: tuple[int, ...]
    key: Any


class Pass:
    """The examples of a pass over a data set, by their places in it.

    Args:
        epoch: 0-based, or that of validation.
        keys: of the data set, in order; a number may come again.
    """

    def __init__(self, epoch: int, keys: Sequence[Any]) -> None:
        self._epoch, self._keys = epoch, keys
        self._times: list[int] | None = None  # how often each came before
        if not isinstance(keys, range | np.ndarray):  # which have each index once
            seen: Counter[int] = Counter()
            self._times = []
            for place in range(len(keys)):
                index = self.index(place)
                self._times.append(seen[index])
                seen[index] += 1

    def __len__(self) -> int:
        return len(self._keys)

    def index(self, place: int) -> int:
        """The index in the data set of the example at a place."""
        key = self._keys[place]
        return int(key) if isinstance(key, Integral) else place

    def request(self, place: int) -> BatchRequest:
        """The example at a place."""
        index, times = self.index(place), self._times[place] if self._times else 0
        key = index if isinstance(self._keys, np.ndarray) else self._keys[place]
        return BatchRequest((self._epoch, index, times + 1) if times else (self._epoch, index), key)


class OwnExamples:
    """The training examples of a loader, in the requested order and micro-batches.

    Args:
        loader: the user's; its sampler gives the order, unless that is a plain random permutation.

    Attributes:
        num_train_examples: examples of an epoch: those of the data set, or of the sampler
            [examples].
        has_own_order: whether a sampler of the loader gives the order.
        dataset: the user's.
    """

    def __init__(self, loader: "DataLoader[Any]", *, seed: int) -> None:
        check_loader(loader, "train_dataloader")
        self._users, self._seed, (sampler, _) = loader, seed, _find_sampler(loader)
        self.dataset: Any = loader.dataset
        self.has_own_order = sampler is not None
        self._own = None if sampler is None else OwnOrder(loader, seed)
        self.num_train_examples = len(self.dataset) if self._own is None else len(self._own(0))
        if self._own:
            _check_sizes(self._own.sizes, sampler)
        self._requests = Requests()
        self._loader = rebuild_loader(loader, self._requests, seed=seed)
        self._pass = Pass(0, range(0))

    def set_epoch(self, seed: int, epoch: int) -> None:
        """Make the order of a 0-based epoch."""
        del seed
        self._pass = self.examples(epoch)

    def examples(self, epoch: int) -> Pass:
        """The pass of an epoch."""
        if self._own is None:
            keys: Any = epoch_order(self._seed, epoch, self.num_train_examples)
        else:
            keys = self._own(epoch)
        return Pass(epoch, keys)

    def indices(self, epoch: int) -> npt.NDArray[np.int64]:
        """Indices in the data set of the examples of an epoch, in its order."""
        keys = self.examples(epoch)
        return np.array([keys.index(place) for place in range(len(keys))])

    def count_tokens(self, count: Callable[[Any], float]) -> npt.NDArray[np.int64]:
        """Items of each example of the data set by itself, shape (num_examples,).

        ValueError if a sampler of the loader does not give each index once, or one is no number.
        """
        own, num = self._own(0) if self._own else (), len(self.dataset)
        if own and (not all(isinstance(k, Integral) for k in own) or sorted(own) != [*range(num)]):
            msg = (
                "batch_unit=tokens needs each example once in an epoch; got a sampler that repeats "
                "or leaves out some. Give the DataLoader one that only orders, or none."
            )
            raise ValueError(msg)
        with keep_generators():
            requests = (BatchRequest((0, index), index) for index in range(num))
            counts = [count(make_batch(self._users, [request])) for request in requests]
        return np.array(counts, dtype=np.int64)

    def order(self, epoch: int) -> npt.NDArray[np.int64]:
        """Places in the pass of an epoch, shape (num_train_examples,)."""
        del epoch
        return np.arange(len(self._pass))

    def train_stream(self, asked: Iterable[Tensor]) -> Iterator[Any]:
        """A micro-batch for each tensor of places, made by the user's collate function."""
        self._requests.pending = (
            [self._pass.request(place) for place in part.tolist()] for part in asked
        )
        yield from self._loader


class ValLoader:
    """A rank's part of a validation loader: whole batches, which are the same on every layout.

    Every example is in one batch. A rank that has a batch less than others evaluates the first one
    again, which does not count, as all ranks must meet in each pass.

    Attributes:
        sizes: examples of each batch, 0 if it does not count [examples].
        numbers: of each batch among those of all ranks.
        dataset: the user's.

    Raises:
        ValueError: if there are no examples.
    """

    def __init__(self, loader: "DataLoader[Any]", *, seed: int, rank: int, world_size: int) -> None:
        check_loader(loader, "val_dataloader")
        source: Any = loader.dataset
        self.dataset, (sampler, gives_batches) = source, _find_sampler(loader)
        order = None if sampler is None else OwnOrder(loader, seed)
        keys: Any = range(len(source)) if order is None else order(0)
        num = len(keys)
        if not num:
            msg = (
                f"a validation set must have examples; got none in {type(source).__name__}. "
                "Correct val_dataloader, or have it return no loader for it."
            )
            raise ValueError(msg)
        batches: Any = loader.sampler if _fetches_batches(loader) else loader.batch_sampler
        if order and gives_batches:
            ends = np.cumsum(order.sizes)
        else:
            ends = np.arange(batches.batch_size, num + batches.batch_size, batches.batch_size)
        parts = np.split(np.arange(num), ends[:-1])
        dealt = list(range(rank, len(parts), world_size))
        spare = [0] * (-(-len(parts) // world_size) - len(dealt))
        self.numbers, self._world_size = [*dealt, *spare], world_size
        self.sizes = [*(len(parts[number]) for number in dealt), *spare]
        self._requests = Requests()
        examples = Pass(VALIDATION, keys)
        self._batches = [[examples.request(int(i)) for i in parts[n]] for n in self.numbers]
        self._loader = rebuild_loader(loader, self._requests, seed=seed)

    def __len__(self) -> int:
        return len(self._batches)

    @property
    def batch_size(self) -> int:
        """Examples of the largest batch, for a user's module [examples]."""
        return max(map(len, self._batches))

    def shorten(self, batches: int, examples: int) -> None:
        """Keep only the first batches of all ranks, and the first examples of each."""
        batches = max(1, batches // self._world_size)
        self.sizes = [min(size, examples) for size in self.sizes[:batches]]
        self._batches = [batch[:examples] for batch in self._batches[:batches]]

    def __iter__(self) -> Iterator[Any]:
        self._requests.pending = iter(self._batches)
        return iter(self._loader)


def rebuild_loader(
    loader: "DataLoader[Any]", batches: Iterable[list[BatchRequest]], *, seed: int
) -> "DataLoader[Any]":
    """A loader with the same data set, collate function and workers, and other batches."""
    settings = process_settings(loader)
    if loader.num_workers:
        settings["worker_init_fn"] = partial(_begin_worker, loader.worker_init_fn)
    return DataLoader(
        _Keyed(loader, loader.dataset, seed),
        batch_sampler=batches,  # pyright: ignore[reportArgumentType]
        collate_fn=collate_nothing,
        generator=torch.Generator(),  # else torch draws from the default generator at each epoch
        persistent_workers=loader.persistent_workers,  # new workers see what hooks did to the data
        **settings,
    )


def _begin_worker(then: Callable[[int], None] | None, worker_id: int) -> None:
    """Have `get_worker_info` in a worker return the user's data set, as in the user's loader."""
    set_worker_dataset(lambda dataset: dataset.own)
    if then is not None:
        then(worker_id)


def make_batch(
    loader: "DataLoader[Any]", requests: Sequence[BatchRequest], *, dataset: Any = None
) -> Any:
    """A batch as a loader with seed 0 makes it in this process, of its data set or of another."""
    return _Keyed(loader, loader.dataset if dataset is None else dataset, 0).__getitems__(requests)


def load_example(loader: "DataLoader[Any]", request: BatchRequest) -> Any:
    """An example before it is collated, as a loader with seed 0 loads it in this process."""
    return _Keyed(loader, loader.dataset, 0)[request]


def process_settings(loader: "DataLoader[Any]") -> dict[str, Any]:
    """How a loader loads: its processes and their settings."""
    settings = {"num_workers": loader.num_workers, "pin_memory": loader.pin_memory}
    if not loader.num_workers:
        return settings
    return settings | {
        "prefetch_factor": loader.prefetch_factor,
        "worker_init_fn": loader.worker_init_fn,
        "multiprocessing_context": loader.multiprocessing_context,
        "timeout": loader.timeout,
    }


def check_loader(loader: Any, made_by: str, *, may_iterate: bool = False) -> None:
    """Refuse anything but a DataLoader that batches its examples.

    Args:
        loader: as the user's code returned it.
        made_by: the method that returned it.
        may_iterate: whether the data set may be iterable only, without a length and indices.

    Raises:
        ValueError: names what was given.
    """
    if not isinstance(loader, DataLoader):
        msg = (
            f"{made_by} must return a torch.utils.data.DataLoader, so that its examples can be "
            f"put in the run's order; got {type(loader).__name__}. Return a DataLoader; of several "
            "training loaders, put the data sets into one, which gives an example of each."
        )
        raise ValueError(msg)
    for name in ("__iter__", "_get_iterator"):
        owner = next(base for base in type(loader).__mro__ if name in vars(base))
        if owner.__module__.partition(".")[0] not in ("torch", "torchdata"):
            msg = (
                f"{made_by} must return a DataLoader whose batches are those of its data set and "
                f"collate_fn; got {type(loader).__name__}, whose {name} changes them. Do that in "
                "collate_fn, in the data set, or in the hook on_after_batch_transfer."
            )
            raise ValueError(msg)
    if loader.batch_sampler is None and not _fetches_batches(loader):
        msg = (
            f"{made_by} must batch its examples, so that they can be counted; got a DataLoader "
            f"with batch_size=None and the sampler {type(loader.sampler).__name__}. Give it "
            "batch_size=1, which the run replaces, or a torch.utils.data.BatchSampler as sampler."
        )
        raise ValueError(msg)
    if not may_iterate and isinstance(loader.dataset, IterableDataset):
        msg = (
            f"{made_by} must have a data set with a length and indices, so that its order can be "
            f"the run's; got {type(loader.dataset).__name__}, which is iterable only."
        )
        raise ValueError(msg)


class _Keyed(Dataset[Any]):
    """Batches of a loader's data set, with the draws of each example seeded by its words."""

    def __init__(self, loader: "DataLoader[Any]", dataset: Any, seed: int) -> None:
        self.own, self._collate, self._seed = dataset, loader.collate_fn, seed
        self._fetches_batches = _fetches_batches(loader)

    def __getitems__(self, requests: Sequence[BatchRequest]) -> Any:
        if self._fetches_batches:
            seed_generators(self._seed, *requests[0].words)
            return self._collate(self.own[[request.key for request in requests]])
        examples = [self[request] for request in requests]
        seed_generators(self._seed, *requests[0].words, _COLLATE)
        return self._collate(examples)

    def __getitem__(self, request: BatchRequest) -> Any:
        seed_generators(self._seed, *request.words)
        return self.own[[request.key] if self._fetches_batches else request.key]


def _fetches_batches(loader: "DataLoader[Any]") -> bool:
    """Whether a loader asks its data set for several examples at once, by a list of keys."""
    return loader.batch_sampler is None and isinstance(loader.sampler, BatchSampler)


def collate_nothing(batch: Any) -> Any:
    """Return a batch that was collated already."""
    return batch


def _find_sampler(loader: "DataLoader[Any]") -> tuple[Any, bool]:
    """The sampler that orders a loader's examples, and whether it gives batches of them.

    None if the run's permutation orders them.
    """
    batches: Any = loader.sampler if _fetches_batches(loader) else loader.batch_sampler
    if type(batches) is not BatchSampler:
        return batches, True
    sampler: Any = batches.sampler  # loader.sampler is another if batch_sampler was given
    if isinstance(sampler, DistributedSampler):
        return None, False
    is_permutation = type(sampler) is RandomSampler and not sampler.replacement
    is_whole = is_permutation and sampler.num_samples == len(loader.dataset)  # type: ignore[arg-type]
    return None if is_whole else sampler, False


def _check_sizes(sizes: Sequence[int], sampler: Any) -> None:
    """Refuse batches that hold as many examples as some budget allows; the last ones may be less.

    Raises:
        ValueError: if less than half of the batches have the largest size.
    """
    if sizes and 2 * list(sizes).count(max(sizes)) < len(sizes):
        msg = (
            "batches of training data must have one number of examples, which the run replaces by "
            f"its own; got {type(sampler).__name__}, whose {len(sizes)} batches have {min(sizes)} "
            f"to {max(sizes)}, as by a budget of tokens. Give the DataLoader a sampler of single "
            "examples, or none; one that sorts by length keeps its order. For the budget write "
            "batch=TOKENS batch_unit=tokens."
        )
        raise ValueError(msg)


_INSIDE = ("sampler", "batch_sampler")  # attributes for the sampler that a sampler wraps


class OwnOrder:
    """The order of a sampler's pass in an epoch, which a resume does not change.

    The global generators, and those that the sampler has as attributes, are seeded by (seed,
    epoch), and `set_epoch` is called. A sampler may count its own passes, so the passes of earlier
    epochs are made too, except for torch's samplers, which do not count.

    Attributes:
        sizes: of the batches of the last pass, if the sampler gives batches [examples].
    """

    def __init__(self, loader: "DataLoader[Any]", seed: int) -> None:
        sampler, self._gives_batches = _find_sampler(loader)
        self._parts, self._seed = list(_find_samplers(sampler)), seed
        self.sizes: list[int] = []
        self._passes, self._order = 0, list[Any]()

    def __call__(self, epoch: int) -> list[Any]:
        """Keys of the data set, in the order of a 0-based epoch."""
        if all(type(part).__module__.startswith("torch.") for part in self._parts):
            return self._pass(epoch)
        assert epoch >= self._passes - 1, "an epoch cannot be repeated once the next has begun"
        while self._passes <= epoch:
            self._order, self._passes = self._pass(self._passes), self._passes + 1
        return self._order

    def _pass(self, epoch: int) -> list[Any]:
        with keep_generators():
            seed_generators(self._seed, epoch)
            for part in self._parts:
                _seed_generators(part, draw_stream(self._seed, epoch))
                if hasattr(part, "set_epoch"):
                    part.set_epoch(epoch)
            given = list(self._parts[0])
            if not self._gives_batches:
                return given
            self.sizes = list(map(len, given))
            return list(chain.from_iterable(given))


def _find_samplers(sampler: Any) -> Iterator[Any]:
    yield sampler
    for name in _INSIDE:
        if isinstance(inner := getattr(sampler, name, None), Sampler):
            yield from _find_samplers(inner)


def _seed_generators(sampler: Any, word: int) -> None:
    for value in getattr(sampler, "__dict__", {}).values():
        if isinstance(value, torch.Generator):
            value.manual_seed(word % 2**63)
        elif isinstance(value, random.Random):
            value.seed(word)
        elif isinstance(value, np.random.RandomState):
            value.seed(word % 2**32)
        elif isinstance(value, np.random.Generator):
            value.bit_generator.state = type(value.bit_generator)(word).state
