"""A flipped bit in the directory of a checkpoint is found; torch and zipfile read over most."""

import random
import zipfile

import pytest
import torch

from sweeper.store.checkpoint_checksum import is_sound, seal


@pytest.fixture
def saved(tmp_path):
    """A checkpoint as torch saves it, without a seal."""
    path = tmp_path / "saved.ckpt"
    torch.save({"weights": {name: torch.randn(4, 3) for name in "abc"}, "epoch": 3}, path)
    return path


def flipped(path, place, bit):
    """A copy of a file with one bit flipped."""
    content = bytearray(path.read_bytes())
    content[place] ^= 1 << bit
    copy = path.with_name("flipped.ckpt")
    copy.write_bytes(content)
    return copy


def of_directory(path):
    """The place of each byte of a zip's directory, before the comment and its length."""
    with zipfile.ZipFile(path) as parts:
        return range(parts.start_dir, path.stat().st_size - len(parts.comment) - 2)


def test_a_sealed_checkpoint_is_sound_and_torch_reads_it(saved, tmp_path):
    seal(saved)

    assert is_sound(saved)
    assert torch.load(saved, weights_only=True)["epoch"] == 3
    assert is_sound(tmp_path / "none.ckpt")


def test_each_flipped_bit_of_the_directory_is_found(saved):
    seal(saved)

    missed = [
        place
        for place in of_directory(saved)
        if is_sound(flipped(saved, place, random.Random(place).randrange(8)))
    ]

    assert missed == []


def test_of_a_checkpoint_without_a_seal_the_parts_are_looked_at(saved):
    """zipfile raises errors of many kinds for wrong offsets, names and methods."""
    places = of_directory(saved)

    found = {is_sound(flipped(saved, place, bit)) for place in places[::3] for bit in (0, 7)}

    assert is_sound(saved)
    assert found == {True, False}
