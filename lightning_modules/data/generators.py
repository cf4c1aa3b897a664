"""Seeds the generators that a user's code may draw from (torch, Python, NumPy) by a key.

Only `seed_draws` and `seed_everything` also seed the generators of GPUs.
"""

import pickle
import random
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from lightning_modules.data.randomness import stream_of

VALIDATION = -1 % 2**63  # in place of an epoch: the same draws after every epoch
OF_STEP = -2 % 2**63  # in place of an epoch: draws for the gradient of an optimizer step
_STILL = 1  # the seed of a generator that is only watched


class _Global(NamedTuple):
    """A generator of this process, and the first draw after the seed `_STILL`."""

    seed: Callable[[int], object]
    draw: Callable[[], float]
    first: float


def _draw_of_torch(generator: torch.Generator | None = None) -> float:
    return torch.rand((), dtype=torch.float64, generator=generator).item()


def _seed_numpy(word: int) -> None:
    np.random.seed(word % 2**32)  # noqa: NPY002


_GLOBAL = (
    _Global(
        torch.default_generator.manual_seed,
        _draw_of_torch,
        _draw_of_torch(torch.Generator().manual_seed(_STILL)),
    ),
    _Global(random.seed, random.random, random.Random(_STILL).random()),
    _Global(
        _seed_numpy,
        np.random.random_sample,
        np.random.RandomState(_STILL).random_sample(),
    ),
)


class KeyedMaking:
    """Makes something from examples, with the random draws of each seeded by its key.

    Seeding takes longer than fetching a small example. So for each example only the generators that
    were seen to draw in this process are seeded. The others are watched, and when one has drawn,
    everything is made again with it seeded. The result is the same as if all were seeded.
    """

    def __init__(self) -> None:
        self._drawing: list[_Global] = []

    @property
    def has_effect(self) -> bool:
        """Whether a generator was seen to draw; else there is nothing to seed."""
        return bool(self._drawing)

    def __call__(self, make: Callable[[Callable[..., None]], Any]) -> Any:
        """What `make` returns when it is passed a function that seeds by a key."""
        while True:
            watched = [one for one in _GLOBAL if one not in self._drawing]
            for one in watched:
                one.seed(_STILL)
            made = make(self._seed)
            moved = [one for one in watched if one.draw() != one.first]
            if not moved:
                return made
            self._drawing += moved

    def _seed(self, *key: int) -> None:
        if self._drawing:
            word = stream_of(*key)
            for one in self._drawing:
                one.seed(word)


@contextmanager
def kept_generators() -> Generator[None]:
    """Leave torch's, Python's and NumPy's generators as they were before the block."""
    kept = torch.random.get_rng_state(), random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        yield
    finally:
        torch.random.set_rng_state(kept[0])
        random.setstate(kept[1])
        np.random.set_state(kept[2])  # noqa: NPY002


def seed_generators(*key: int) -> None:
    """Seed torch's, Python's and NumPy's generators of this process by a key."""
    word = stream_of(*key)
    for one in _GLOBAL:
        one.seed(word)


def seed_draws(*key: int) -> None:
    """Seed the same generators, and that of the current GPU if this process uses one."""
    seed_generators(*key)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(stream_of(*key))


def seed_everything(seed: int) -> None:
    """Seed the generators for initial weights and random splits, including torch's on GPUs."""
    torch.manual_seed(seed)
    random.seed(seed)
    _seed_numpy(seed)


@contextmanager
def noted_seeds(noted: list[object]) -> Generator[None]:
    """Record what the global generators are seeded with inside the block."""
    places: list[tuple[Any, str]] = [(torch, "manual_seed"), (random, "seed"), (np.random, "seed")]
    before = [getattr(place, name) for place, name in places]

    def noting(seed_with: Callable[..., Any], *given: Any, **named: Any) -> Any:
        noted.extend([*given, *named.values()][:1])
        return seed_with(*given, **named)

    for (place, name), seed_with in zip(places, before, strict=True):
        setattr(place, name, partial(noting, seed_with))
    try:
        yield
    finally:
        for (place, name), seed_with in zip(places, before, strict=True):
            setattr(place, name, seed_with)


def generator_states() -> list[bytes]:
    """The states of torch's, Python's and NumPy's generators."""
    others = pickle.dumps((random.getstate(), np.random.get_state()))  # noqa: NPY002
    return [torch.get_rng_state().numpy().tobytes(), others]
