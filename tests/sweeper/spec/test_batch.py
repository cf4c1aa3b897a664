"""The batch contract: exact or refused, never rounded."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sweeper.spec.batch import choose_micro_batch, split_global_batch, steps_per_epoch

IMAGENET = 1_281_167

# FACTS, from N // B; the last, incomplete batch of an epoch is not trained on.
STEPS = {256: 5004, 3840: 333, 7680: 166, 8192: 156, 15360: 83, 23040: 55, 30720: 41, 32768: 39}


@given(
    micro_batch=st.integers(1, 512),
    accumulation_steps=st.integers(1, 64),
    world_size=st.integers(1, 256),
)
def test_a_split_multiplies_back_to_the_global_batch(micro_batch, accumulation_steps, world_size):
    batch = micro_batch * accumulation_steps * world_size

    split = split_global_batch(batch, world_size=world_size, micro_batch=micro_batch, bn_span=1)

    assert split.accumulation_steps == accumulation_steps
    assert split.global_batch == batch
    assert split.rank_batch * world_size == batch


@given(batch=st.integers(1, 100_000), world_size=st.integers(1, 16), limit=st.integers(1, 1024))
def test_a_chosen_micro_batch_splits_exactly_within_the_limit_or_is_refused(
    batch, world_size, limit
):
    assume(batch % world_size == 0)
    try:
        micro = choose_micro_batch(batch, world_size=world_size, limit=limit, bn_span=1)
    except ValueError:
        small_parts = [d for d in range(1, limit + 1) if (batch // world_size) % d == 0]
        assert max(small_parts) * 8 < min(batch // world_size, limit)
    else:
        assert batch % (micro * world_size) == 0
        assert micro <= limit


@pytest.mark.parametrize(("batch", "steps"), STEPS.items())
def test_steps_per_epoch_are_whole_global_batches(batch, steps):
    assert steps_per_epoch(IMAGENET, batch) == steps


def test_a_prime_batch_that_would_train_one_by_one_is_refused_with_useful_neighbours():
    with pytest.raises(ValueError, match="only divides into micro-batches of 1 within") as refusal:
        choose_micro_batch(7919, world_size=1, limit=256, bn_span=1)

    neighbours = str(refusal.value).split("Nearest batches that work: ")[1].split(";")[0]
    for batch in map(int, neighbours.split(", ")):
        assert choose_micro_batch(batch, world_size=1, limit=256, bn_span=1) >= 128


def test_ranks_may_make_a_span_together():
    split = split_global_batch(1024, world_size=4, micro_batch=64, bn_span=256)

    assert (split.ranks_per_span(256), split.ranks_per_span(64), split.ranks_per_span(32)) == (
        4,
        1,
        1,
    )
