"""Randomness as a function of what it is for, never of which process draws it.

A draw depends on (seed, epoch, example, draw), so it is the same on every layout and after
every resume. The generator is SplitMix64 with a counter: the counter times the golden ratio, then
the finaliser.

Source:
    Steele, Lea & Flood 2014, "Fast splittable pseudorandom number generators", OOPSLA.
"""

import pickle
import random
from collections.abc import Generator
from contextlib import contextmanager
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_WORD = 2**64 - 1


def epoch_order(seed: int, epoch: int, num_examples: int) -> npt.NDArray[np.int64]:
    """Order of the examples of a 0-based epoch, shape (n,): a permutation from (seed, epoch)."""
    return np.random.Generator(np.random.Philox(key=[seed, epoch])).permutation(num_examples)


def example_uniforms(
    seed: int, epoch: int, examples: npt.NDArray[np.int64], num_draws: int
) -> npt.NDArray[np.float64]:
    """Uniform draws in [0, 1) for n examples of a 0-based epoch, shape (n, num_draws)."""
    with np.errstate(over="ignore"):
        golden = np.uint64(_GOLDEN)
        stream = _mix(_mix(np.uint64(seed) + golden) + np.uint64(epoch))
        counters = examples.astype(np.uint64)[:, None] * np.uint64(num_draws)
        counters = counters + np.arange(num_draws, dtype=np.uint64)[None, :]
        bits = _mix(stream + (counters + np.uint64(1)) * golden)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def draw_stream(*key: int) -> int:
    """Where the counters of a key begin, from 0 to below 2**64; the order of the parts matters."""
    return _mix_word(_prefix_stream(key[:-1]) + key[-1] + _GOLDEN)


@lru_cache(maxsize=64)  # keys of the examples of an epoch differ in their last part
def _prefix_stream(key: tuple[int, ...]) -> int:
    return draw_stream(*key) if key else 0


def counter_bits(stream: int, first: int, num: int, device: torch.device) -> Tensor:
    """Random 64-bit words of consecutive counters of a `draw_stream`: int64, shape (num,)."""
    bits = torch.arange(num, device=device).mul_(_to_signed(_GOLDEN))
    bits.add_(_to_signed(stream + (first + 1) * _GOLDEN))
    shifted = torch.empty_like(bits)
    for shift, factor in ((30, _MIX_1), (27, _MIX_2), (31, None)):
        torch.bitwise_right_shift(bits, shift, out=shifted)
        bits.bitwise_xor_(shifted.bitwise_and_(2 ** (64 - shift) - 1))  # the sign was shifted in
        if factor is not None:
            bits.mul_(_to_signed(factor))
    return bits


def _to_signed(word: int) -> int:
    """The number whose two's complement is this word, modulo 2**64."""
    word %= 2**64
    return word - 2**64 if word >= 2**63 else word


def _mix_word(word: int) -> int:
    """The finaliser of a single word: much faster than that of an array."""
    word &= _WORD
    word = (word ^ (word >> 30)) * _MIX_1 & _WORD
    word = (word ^ (word >> 27)) * _MIX_2 & _WORD
    return word ^ (word >> 31)


def _mix(bits: npt.NDArray[np.uint64] | np.uint64) -> npt.NDArray[np.uint64]:
    mixed = np.asarray(bits, dtype=np.uint64)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(_MIX_1)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(_MIX_2)
    return mixed ^ (mixed >> np.uint64(31))


VALIDATION = -1 % 2**63  # in place of an epoch: the same draws after every epoch
STEP_DRAWS = -2 % 2**63  # in place of an epoch: draws for the gradient of an optimizer step


@contextmanager
def keep_generators() -> Generator[None]:
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
    word = draw_stream(*key)
    torch.default_generator.manual_seed(word)
    random.seed(word)
    np.random.seed(word % 2**32)  # noqa: NPY002


def seed_draws(*key: int) -> None:
    """Seed the same generators, and that of the current GPU if this process uses it."""
    seed_generators(*key)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(draw_stream(*key))


def seed_everything(seed: int) -> None:
    """Seed the generators for initial weights and random splits, including torch's on GPUs."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002


def generator_states() -> list[bytes]:
    """The states of torch's, Python's and NumPy's generators."""
    others = pickle.dumps((random.getstate(), np.random.get_state()))  # noqa: NPY002
    return [torch.get_rng_state().numpy().tobytes(), others]
