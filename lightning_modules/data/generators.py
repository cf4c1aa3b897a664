"""Seeds the generators that a user's code may draw from (torch, Python, NumPy) by a key.

Only `seed_draws` and `seed_everything` also seed the generators of GPUs.
"""

import pickle
import random
from collections.abc import Generator
from contextlib import contextmanager

import numpy as np
import torch

from lightning_modules.data.randomness import stream_of

VALIDATION = -1 % 2**63  # in place of an epoch: the same draws after every epoch
OF_STEP = -2 % 2**63  # in place of an epoch: draws for the gradient of an optimizer step


def _seed_numpy(word: int) -> None:
    np.random.seed(word % 2**32)  # noqa: NPY002


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
    torch.default_generator.manual_seed(word)
    random.seed(word)
    _seed_numpy(word)


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


def generator_states() -> list[bytes]:
    """The states of torch's, Python's and NumPy's generators."""
    others = pickle.dumps((random.getstate(), np.random.get_state()))  # noqa: NPY002
    return [torch.get_rng_state().numpy().tobytes(), others]
