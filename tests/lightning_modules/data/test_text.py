"""A text as sequences of tokens: each label is the next token, the end is held out."""

import datasets
import numpy as np
import pytest
import torch

from lightning_modules.data.image_files import fill_counts
from lightning_modules.data.text import TextTokens
from lightning_modules.data.tokens import embedded_version, load_tokens


def opened(path, **changes):
    settings = {"length": 4, "vocabulary": 256, "num_train_examples": 3, "num_val_examples": 2}
    return TextTokens(name="letters", root=path and str(path), **(settings | changes))


@pytest.fixture
def letters(tmp_path):
    path = tmp_path / "letters.txt"
    path.write_bytes(b"abcdefghijklmnopqrstuvwxyz"[:23])  # five sequences of four, two to spare
    return path


def as_text(tokens):
    return [bytes(row.tolist()) for row in tokens]


def test_labels_are_the_tokens_one_further(letters):
    inputs, labels = opened(letters).train_examples(torch.tensor([2, 0]))

    assert as_text(inputs) == [b"ijkl", b"abcd"]
    assert as_text(labels) == [b"jklm", b"bcde"]


@pytest.mark.parametrize("train", [2, 3])
def test_validation_is_the_end_of_the_text_also_where_a_part_is_trained_on(letters, train):
    inputs, labels = opened(letters, num_train_examples=train).val_examples(0, 2)

    assert as_text(inputs) == [b"mnop", b"qrst"]
    assert as_text(labels) == [b"nopq", b"rstu"]


def test_a_wrong_number_of_sequences_is_answered_with_the_right_one(letters):
    with pytest.raises(ValueError, match=r"got 7, .*holds 3\. Set data\.num_train_examples=3"):
        opened(letters, num_train_examples=7)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"data\.root must be a text file, .*; got .*none, which"):
        opened(tmp_path / "none")


def test_the_embedded_text_is_that_of_the_planning_python():
    with pytest.raises(ValueError, match=rf"sources, {embedded_version()}; got 3\.9\.9-00\. Use"):
        opened(None, version="3.9.9-00")
    assert len(load_tokens(None, 256)) > 5e6


def test_pairs_are_learned_once_and_give_the_text_back(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "text").write_text("the cat sat on the mat\n" * 50)

    learned = load_tokens(str(tmp_path / "text"), 270)
    (cached,) = (tmp_path / "sweeper").iterdir()

    assert len(learned) < len("the cat sat on the mat\n" * 50) / 2
    assert 256 <= learned.max() < 270
    np.save(cached, learned[:3])  # what lies there is taken
    assert load_tokens(str(tmp_path / "text"), 270).tolist() == learned[:3].tolist()
    cached.write_bytes(b"damaged")
    assert load_tokens(str(tmp_path / "text"), 270).tolist() == learned.tolist()


def test_a_saved_data_set_is_its_column_text(tmp_path):
    saved = datasets.Dataset.from_dict({"text": ["ab", "cd"]})
    datasets.DatasetDict({"train": saved}).save_to_disk(tmp_path / "both")

    assert bytes(load_tokens(str(tmp_path / "both"), 256)) == b"ab\ncd"


def test_a_text_that_is_all_validation_is_refused(tmp_path):
    (path := tmp_path / "text.txt").write_bytes(bytes(range(101)))
    group = {"_target_": "lightning_modules.data.text.TextTokens", "name": "few"}
    sizes = {"vocabulary": 256, "length": 10, "num_train_examples": None, "num_val_examples": 10}

    with pytest.raises(ValueError, match=r"got 101 tokens, 10 of data\.length=10\. Use a longer"):
        fill_counts({**group, "root": str(path), **sizes})
    assert (
        fill_counts({**group, "root": str(path), **sizes, "num_val_examples": 9})[
            "num_train_examples"
        ]
        == 1
    )
