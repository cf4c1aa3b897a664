"""A text as sequences of tokens: each label is the next token, the end is held out."""

import datasets
import numpy as np
import pytest
import torch

from lightning_modules.data.image_files import fill_counts
from lightning_modules.data.text import TextTokens, mask_tokens
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


def test_as_many_tokens_are_masked_in_each_sequence_four_fifths_by_the_mask():
    """BERT's: of 15 % of 100 tokens 80 % the mask, 10 % any token, 10 % as they were."""
    tokens = torch.randint(256, (4000, 100), generator=torch.Generator().manual_seed(0))
    draws = np.random.default_rng(0).random((4000, 200))

    inputs, labels = mask_tokens(tokens, draws, num=15, mask=256)

    asked = labels != -100
    assert set(asked.sum(dim=1).tolist()) == {15}
    assert torch.equal(labels[asked], tokens[asked])
    assert torch.equal(inputs[~asked], tokens[~asked])
    is_mask, is_same = inputs[asked] == 256, inputs[asked] == labels[asked]
    # 60,000 of them: a standard error of 0.0016
    assert is_mask.float().mean() == pytest.approx(0.8, abs=0.007)
    assert is_same.float().mean() == pytest.approx(0.1 + 0.1 / 256, abs=0.005)
    others = inputs[asked][~is_mask & ~is_same]
    assert others.float().mean() == pytest.approx(127.5, abs=4)
    assert asked.float().mean(dim=0).std() < 0.01  # anywhere in the sequence


def test_a_mask_is_a_function_of_seed_epoch_and_sequence_and_fixed_in_validation(letters):
    data = opened(letters, masked=0.5)

    def read(seed, epoch, *examples):
        data.set_epoch(seed, epoch)
        return torch.stack(data.train_examples(torch.tensor(examples)))

    together, validation = read(0, 1, 2, 0, 1), data.val_examples(0, 2)
    assert data.num_classes == 257
    assert torch.equal(read(0, 1, 0), together[:, 1:2])
    assert not torch.equal(read(0, 2, 2, 0, 1), together)
    assert not torch.equal(read(1, 1, 2, 0, 1), together)
    for before, after in zip(validation, data.val_examples(0, 2), strict=True):
        assert torch.equal(before, after)
    assert (validation[1] != -100).sum(dim=1).tolist() == [2, 2]


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
