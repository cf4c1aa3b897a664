"""The order that a user's own sampler gives, as a function of (seed, epoch)."""

import random
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Sampler

from lightning_modules.data.generators import kept_generators, seed_generators
from lightning_modules.data.randomness import stream_of

_INSIDE = ("sampler", "batch_sampler")  # attributes for the sampler that a sampler wraps


class OwnOrder:
    """The order of a sampler's pass in an epoch, which a resume does not change.

    The global generators, and those that the sampler has as attributes, are seeded by (seed,
    epoch), and `set_epoch` is called. A sampler may count its own passes, so the passes of earlier
    epochs are made too, except for torch's samplers, which do not count.

    Args:
        sampler: of examples or of batches.
        seed: the run's seed.
    """

    def __init__(self, sampler: Any, seed: int) -> None:
        self._parts, self._seed = list(_parts_of(sampler)), seed
        self._passes, self._order = 0, np.empty(0, np.int64)

    def __call__(self, epoch: int) -> npt.NDArray[np.int64]:
        """Indices in the data set, in the order of a 0-based epoch."""
        if all(_is_torchs(part) for part in self._parts):
            return self._pass(epoch)
        assert epoch >= self._passes - 1, "an epoch cannot be repeated once the next has begun"
        while self._passes <= epoch:
            self._order, self._passes = self._pass(self._passes), self._passes + 1
        return self._order

    def _pass(self, epoch: int) -> npt.NDArray[np.int64]:
        with kept_generators():
            seed_generators(self._seed, epoch)
            for part in self._parts:
                _seed(part, stream_of(self._seed, epoch))
                if hasattr(part, "set_epoch"):
                    part.set_epoch(epoch)
            return np.fromiter(_flat(self._parts[0]), np.int64)


def _parts_of(sampler: Any) -> Iterator[Any]:
    yield sampler
    for name in _INSIDE:
        if isinstance(inner := getattr(sampler, name, None), Sampler):
            yield from _parts_of(inner)


def _is_torchs(sampler: Any) -> bool:
    return type(sampler).__module__.startswith("torch.")


def _seed(sampler: Any, word: int) -> None:
    for one in getattr(sampler, "__dict__", {}).values():
        if isinstance(one, torch.Generator):
            one.manual_seed(word % 2**63)
        elif isinstance(one, random.Random):
            one.seed(word)
        elif isinstance(one, np.random.RandomState):
            one.seed(word % 2**32)
        elif isinstance(one, np.random.Generator):
            one.bit_generator.state = type(one.bit_generator)(word).state


def _flat(sampler: Iterable[Any]) -> Iterator[int]:
    for item in sampler:
        if isinstance(item, Iterable):
            yield from item  # of a batch sampler
        else:
            yield int(item)
