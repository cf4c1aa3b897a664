"""The search for the largest micro-batch that fits, against memories whose size is known."""

import math
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from sweeper.spec.batch import usable_micro_batches
from sweeper.spec.micro_batch_search import Bounds, largest_fitting, next_try

USABLE = st.sets(st.integers(1, 4096), min_size=1, max_size=60).map(sorted)


def searched(usable: list[int], capacity: int) -> tuple[int | None, list[int]]:
    """What is found where exactly the micro-batches up to a capacity fit, and what was tried."""
    tried: list[int] = []
    while True:
        bounds = Bounds.of([m for m in tried if m <= capacity], [m for m in tried if m > capacity])
        micro_batch = next_try(usable, bounds)
        if micro_batch is None:
            return largest_fitting(usable, bounds), tried
        tried.append(micro_batch)


@given(usable=USABLE, capacity=st.integers(0, 5000))
def test_the_largest_usable_within_the_capacity_is_found(usable, capacity):
    found, tried = searched(usable, capacity)

    assert found == max((m for m in usable if m <= capacity), default=None)
    assert len(set(tried)) == len(tried)


@given(usable=USABLE, capacity=st.integers(0, 5000))
def test_the_next_larger_was_tried_and_does_not_fit(usable, capacity):
    found, tried = searched(usable, capacity)

    larger = [m for m in usable if m > (found or 0)]
    assert not larger or larger[0] in tried


@given(usable=USABLE, capacity=st.integers(0, 5000))
def test_a_few_tries_are_enough(usable, capacity):
    """Five to double from a sixteenth to the whole, one more for each gap, then halvings."""
    _, tried = searched(usable, capacity)

    gaps = sum(later > 2 * earlier for earlier, later in pairwise(usable))
    assert len(tried) <= 5 + gaps + math.ceil(math.log2(len(usable) + 1))


def test_the_papers_batch_is_searched_by_doubling_then_halving():
    """3,840 = 2**8 x 15: its divisors of up to 768; what fits is 200 examples."""
    usable = usable_micro_batches(3840, limit=768, bn_span=1)

    found, tried = searched(usable, 200)

    assert tried == [48, 96, 192, 384, 256, 240]
    assert found == 192


def test_what_is_known_of_one_batch_spares_tries_of_another():
    """128 fits and 256 does not: 7,680's 192 and 160 are open, 30,720's 128 needs no try."""
    bounds = Bounds(fits=128, fails=256)

    assert next_try([96, 128, 160, 192, 256], bounds) == 192
    assert next_try([64, 128, 256], bounds) is None
    assert largest_fitting([64, 128, 256], bounds) == 128


def test_a_size_that_failed_later_takes_precedence_over_an_earlier_fit():
    bounds = Bounds.of([64, 128, 256], [256])

    assert bounds == Bounds(fits=128, fails=256)
    assert Bounds.of([64, 128], [32]) == Bounds(fits=0, fails=32)


@given(
    micro_batch=st.integers(1, 64),
    accumulation_steps=st.integers(1, 64),
    span=st.integers(1, 8),
    limit=st.integers(1, 512),
)
def test_usable_micro_batches_are_the_whole_spans_that_divide_the_share(
    micro_batch, accumulation_steps, span, limit
):
    share = micro_batch * accumulation_steps * span

    usable = usable_micro_batches(share, limit=limit, bn_span=span)

    assert usable == [m for m in range(span, limit + 1, span) if share % m == 0]
