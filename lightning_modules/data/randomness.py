"""Randomness as a function of what it is for, never of which process draws it.

A draw depends on (seed, epoch, example, draw), so it is the same on every layout and after
every resume. The generator is SplitMix64 with a counter: the counter times the golden ratio, then
the finaliser.

Source:
    Steele, Lea & Flood 2014, "Fast splittable pseudorandom number generators", OOPSLA.
"""

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


def stream_of(*key: int) -> int:
    """Where the counters of a key begin, from 0 to below 2**64; the order of the parts matters."""
    return _mixed(_stream_of(key[:-1]) + key[-1] + _GOLDEN)


@lru_cache(maxsize=64)  # keys of the examples of an epoch differ in their last part
def _stream_of(key: tuple[int, ...]) -> int:
    return stream_of(*key) if key else 0


def counter_bits(stream: int, first: int, num: int, device: torch.device) -> Tensor:
    """Random 64-bit words of consecutive counters of a `stream_of`: int64, shape (num,)."""
    bits = torch.arange(num, device=device).mul_(_signed(_GOLDEN))
    bits.add_(_signed(stream + (first + 1) * _GOLDEN))
    shifted = torch.empty_like(bits)
    for shift, factor in ((30, _MIX_1), (27, _MIX_2), (31, None)):
        torch.bitwise_right_shift(bits, shift, out=shifted)
        bits.bitwise_xor_(shifted.bitwise_and_(2 ** (64 - shift) - 1))  # the sign was shifted in
        if factor is not None:
            bits.mul_(_signed(factor))
    return bits


def _signed(word: int) -> int:
    """The number whose two's complement is this word, modulo 2**64."""
    word %= 2**64
    return word - 2**64 if word >= 2**63 else word


def _mixed(word: int) -> int:
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
