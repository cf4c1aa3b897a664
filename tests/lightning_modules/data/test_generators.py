"""Draws belong to a key whether or not a generator was seen to draw before."""

import random

import numpy as np
import pytest
import torch

from lightning_modules.data.generators import KeyedMaking, seed_generators

DRAWS = {
    "torch": lambda: torch.randn(()).item(),
    "random": lambda: random.gauss(0, 1),
    "numpy": np.random.randn,
    "none": lambda: 0.0,
}


def under(key, draw):
    seed_generators(*key)
    return draw()


@pytest.mark.parametrize("name", DRAWS)
def test_each_generator_draws_by_the_key(name):
    keyed, draw = KeyedMaking(), DRAWS[name]
    keys = [(0, 1, index) for index in range(4)]

    made = keyed(lambda seed: [(seed(*key), draw())[1] for key in keys])

    assert made == [under(key, draw) for key in keys]


def test_a_generator_that_draws_later_is_noticed_and_what_it_spoilt_is_made_again():
    keyed, tries = KeyedMaking(), []

    def make(names, key):
        def attempt(seed):
            seed(*key)
            tries.append(names)
            return [DRAWS[name]() for name in names]

        return keyed(attempt)

    for names in ("none", "torch", "torch", "random"), ("none",), ("torch", "random", "numpy"):
        key = 3, len(names)
        assert make(names, key) == under(key, lambda names=names: [DRAWS[n]() for n in names])
    assert len(tries) == 5  # the first and the last twice


def test_nothing_is_made_twice_of_what_does_not_draw():
    keyed, tries = KeyedMaking(), []

    for _ in range(3):
        keyed(lambda seed: tries.append(seed(1)))

    assert len(tries) == 3
