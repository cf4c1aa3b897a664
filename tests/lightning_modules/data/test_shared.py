"""Arrays that the runs of a sweep share: made once, within a bound."""

import time

import numpy as np
import pytest

from lightning_modules.data import shared
from lightning_modules.data.shared import shared_array


@pytest.fixture
def array(tmp_path, monkeypatch):
    """A shared array of 1,000 bytes of its number; with the numbers that were made so far."""
    monkeypatch.setenv("SWEEPER_SHARED", str(tmp_path))
    monkeypatch.setattr(shared, "_MOST_BYTES", 2500)
    made = []

    def make(number):
        made.append(number)
        return np.full(1000, number, dtype=np.uint8)

    def array(number):
        time.sleep(0.02)  # file systems' clocks are coarse
        return shared_array(f"n-{number}", lambda: make(number)), tuple(made)

    return array


def test_an_array_is_made_once(array):
    for _ in range(2):
        values, made = array(7)
        assert (values.tolist(), made) == ([7] * 1000, (7,))


def test_what_was_used_longest_ago_makes_room_and_whoever_uses_it_keeps_it(array, tmp_path):
    for number in (1, 2):
        array(number)
    first, _ = array(1)
    array(3)

    assert sorted(path.stem for path in tmp_path.iterdir()) == ["n-1", "n-3"]
    array(4)
    assert sorted(path.stem for path in tmp_path.iterdir()) == ["n-3", "n-4"]
    assert first.tolist() == [1] * 1000
    assert array(2)[1] == (1, 2, 3, 4, 2)


def test_one_that_is_larger_than_the_bound_is_shared_alone(array, monkeypatch, tmp_path):
    array(1)
    monkeypatch.setattr(shared, "_MOST_BYTES", 500)
    array(2)

    assert [path.stem for path in tmp_path.iterdir()] == ["n-2"]
    assert array(2)[1] == (1, 2)


def test_without_a_folder_everyone_makes_it(array, monkeypatch):
    monkeypatch.delenv("SWEEPER_SHARED")

    assert [array(1)[1] for _ in range(2)] == [(1,), (1, 1)]
