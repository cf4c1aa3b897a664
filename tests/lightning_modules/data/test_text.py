"""A text as sequences of bytes: each label is the next byte, the end is held out."""

import pytest
import torch

from lightning_modules.data.text import TextBytes


def opened(path, **changes):
    settings = {"length": 4, "num_train_examples": 3, "num_val_examples": 2, **changes}
    return TextBytes(name="letters", root=str(path), **settings)


@pytest.fixture
def letters(tmp_path):
    path = tmp_path / "letters.txt"
    path.write_bytes(b"abcdefghijklmnopqrstuvwxyz"[:23])  # five sequences of four, two to spare
    return path


def as_text(symbols):
    return [bytes(row.tolist()) for row in symbols]


def test_labels_are_the_bytes_one_further(letters):
    inputs, labels = opened(letters).train_examples(torch.tensor([2, 0]))

    assert as_text(inputs) == [b"ijkl", b"abcd"]
    assert as_text(labels) == [b"jklm", b"bcde"]


def test_validation_is_the_end_of_the_text(letters):
    inputs, labels = opened(letters).val_examples(0, 2)

    assert as_text(inputs) == [b"mnop", b"qrst"]
    assert as_text(labels) == [b"nopq", b"rstu"]


def test_a_wrong_number_of_sequences_is_answered_with_the_right_one(letters):
    with pytest.raises(ValueError, match=r"got 7, .*holds 3\. Set data\.num_train_examples=3"):
        opened(letters, num_train_examples=7)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"data\.root must be a text file; got data\.root=.*none"):
        opened(tmp_path / "none")
