"""How many examples a batch has, in whatever form."""

from types import SimpleNamespace

import pytest
import torch

from lightning_modules.data.batch_counts import count_examples


@pytest.mark.parametrize(
    ("batch", "examples"),
    [
        (torch.zeros(3, 4), 3),  # not 4, however many are expected
        ((torch.zeros(2, 9), torch.zeros(2)), 2),
        ({"nodes": torch.zeros(9, 2), "y": torch.zeros(4)}, 4),
        (SimpleNamespace(name="waves", nodes=torch.zeros(9, 2), y=torch.zeros(4)), 4),
        (SimpleNamespace(nodes=torch.zeros(4, 2), batch_size=6), 6),
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
