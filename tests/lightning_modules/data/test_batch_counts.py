"""How many examples a batch has, and what counts as an item of it."""

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch

from lightning_modules.data.batch_counts import count_examples, item_count

IDS = torch.tensor([[3, 0, 5], [0, 0, -100]])
BATCH = {
    "labels": IDS,
    "attention_mask": torch.tensor([[1, 1, 0], [1, 0, 0]]),
    "float_mask": torch.tensor([1.0, 0.0]),
    "valid": torch.tensor([True, False]),
    "weights": torch.tensor([0.5]),
    "texts": ["a", "b"],
}


@dataclass(slots=True)
class Windows:
    past: torch.Tensor
    future: torch.Tensor | None = None


def halves(batch):
    return 0.5 * len(batch["labels"])


def none(batch):
    del batch


def negative(batch):
    del batch
    return -1


@pytest.mark.parametrize(
    ("key", "count"), [("labels", 5), ("attention_mask", 3), ("float_mask", 1), ("valid", 1)]
)
def test_labels_count_unless_they_are_ignored_and_masks_where_they_are_set(key, count):
    assert item_count(key)(BATCH) == count


def test_a_function_counts_what_it_likes():
    assert item_count("test_batch_counts.halves")(BATCH) == 1.0


@pytest.mark.parametrize(
    ("loss_items", "sentence"),
    [
        ("weights", r"labels as whole numbers.* which holds torch.float32 numbers"),
        ("texts", r"which holds a list"),
        (
            "lables",
            r"a key of the batch or .* the batch is a dict with keys labels, attention_mask",
        ),
        ("test_batch_counts.none", r"returns the number of items .* which returned None"),
        ("test_batch_counts.negative", r"which returned -1"),
        ("nowhere.count", r"loss_items must name something that can be imported"),
    ],
)
def test_what_cannot_be_counted_is_refused(loss_items, sentence):
    with pytest.raises(ValueError, match=sentence):
        item_count(loss_items)(BATCH)


def test_a_batch_without_keys_has_none_to_count():
    with pytest.raises(ValueError, match="the batch is a list with no keys"):
        item_count("labels")([IDS])


@pytest.mark.parametrize(
    ("batch", "examples"),
    [
        (torch.zeros(3, 4), 3),  # not 4, however many are expected
        ((torch.zeros(2, 9), torch.zeros(2)), 2),
        ({"nodes": torch.zeros(9, 2), "y": torch.zeros(4)}, 4),
        (SimpleNamespace(name="waves", nodes=torch.zeros(9, 2), y=torch.zeros(4)), 4),
        (SimpleNamespace(nodes=torch.zeros(4, 2), batch_size=6), 6),
        (Windows(torch.zeros(4, 9)), 4),
        ((torch.zeros(3, 9), torch.zeros(3), ["a", "b", "c", "d"]), 3),  # one example was dropped
        ((torch.zeros(9, 2), torch.zeros(9), ["a", "b", "c", "d"]), 4),  # several parts of each
        (([torch.zeros(2, 2)] * 4, torch.zeros(3)), 4),  # and what is the same for all
        (["a", "b"], 2),
    ],
)
def test_examples_are_counted_in_whatever_a_batch_is(batch, examples):
    assert count_examples(batch, 4) == examples


def test_a_batch_that_shows_no_examples_is_refused():
    with pytest.raises(ValueError, match=r"a batch must show .* got a SimpleNamespace with neith"):
        count_examples(SimpleNamespace(name="waves"), 4)
