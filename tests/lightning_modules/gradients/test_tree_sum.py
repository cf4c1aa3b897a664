"""One fixed order of a sum, whoever adds what."""

import math

import pytest
import torch

from lightning_modules.gradients.tree_sum import TreeSum, rank_nodes
from lightning_modules.rank_plan import micro_batch_indices
from sweeper.spec.batch import BatchSplit


def leaves(num: int) -> list[torch.Tensor]:
    """Of many magnitudes, so that each order of adding them up rounds differently."""
    generator = torch.Generator().manual_seed(0)
    exponents = torch.randint(-20, 20, (num, 50), generator=generator)
    return list(torch.randn(num, 50, generator=generator) * 2.0**exponents)


def halved(values: list[torch.Tensor]) -> torch.Tensor:
    """The definition: the sum of the sums of the two halves."""
    if len(values) == 1:
        return values[0]
    middle = len(values) // 2
    return halved(values[:middle]) + halved(values[middle:])


def over_ranks(split: BatchSplit, bn_span: int) -> torch.Tensor:
    """Each rank adds up its own leaves; then one adds up what all of them hold."""
    places = micro_batch_indices(split, bn_span)
    values = leaves(split.world_size * split.accumulation_steps)
    total = TreeSum(len(values))
    for mine, held in zip(places, rank_nodes(places), strict=True):
        of_rank = TreeSum(len(values))
        for place in mine:
            of_rank.add((place, place + 1), [values[place].clone()])
        assert sorted(of_rank.partial) == held
        for node, tensors in of_rank.partial.items():
            total.add(node, tensors)
    ((root,),) = total.partial.values()
    return root


@pytest.mark.parametrize(
    ("world_size", "accumulation_steps", "ranks_per_span"),
    [(1, 12, 1), (2, 6, 1), (4, 3, 1), (3, 4, 1), (12, 1, 1), (4, 3, 2), (6, 2, 3)],
)
def test_it_is_the_sum_of_halves_to_the_last_bit(world_size, accumulation_steps, ranks_per_span):
    split = BatchSplit(micro_batch=8, accumulation_steps=accumulation_steps, world_size=world_size)

    assert torch.equal(over_ranks(split, 8 * ranks_per_span), halved(leaves(12)))


def test_the_order_does_matter_for_these_leaves():
    """A sum from left to right has other bits; so the test above can fail."""
    assert not torch.equal(sum(leaves(12)), halved(leaves(12)))


@pytest.mark.parametrize("world_size", [1, 2, 4, 8])
@pytest.mark.parametrize("accumulation_steps", [1, 3, 8])
def test_powers_of_two_of_ranks_hold_one_sum_each(world_size, accumulation_steps):
    split = BatchSplit(micro_batch=1, accumulation_steps=accumulation_steps, world_size=world_size)

    assert {len(held) for held in rank_nodes(micro_batch_indices(split, 1))} == {1}


@pytest.mark.parametrize("num", [1, 2, 7, 64, 100])
def test_few_sums_wait_at_a_time(num):
    total = TreeSum(num)
    most = 0
    for leaf in range(num):
        total.add((leaf, leaf + 1), [torch.zeros(1)])
        most = max(most, len(total.partial))

    assert most <= math.log2(num) + 1
    assert list(total.partial) == [(0, num)]
