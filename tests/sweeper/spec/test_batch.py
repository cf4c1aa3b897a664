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


@pytest.mark.parametrize(
    ("batch", "rank_batch"),
    [(3840, 16), (7680, 32), (15360, 64), (23040, 96), (30720, 128)],
)
def test_the_papers_batches_on_240_ranks_give_the_papers_per_worker_batches(batch, rank_batch):
    micro = choose_micro_batch(batch, world_size=240, limit=128, bn_span=16)

    split = split_global_batch(batch, world_size=240, micro_batch=micro, bn_span=16)

    assert split.rank_batch == rank_batch
    assert split.accumulation_steps == 1


@pytest.mark.parametrize("batch", [3840, 7680, 15360, 23040, 30720])
def test_the_papers_batches_fit_one_rank_by_accumulation(batch):
    micro = choose_micro_batch(batch, world_size=1, limit=256, bn_span=1)

    split = split_global_batch(batch, world_size=1, micro_batch=micro, bn_span=1)

    assert (split.micro_batch, split.accumulation_steps) == (256, batch // 256)


@pytest.mark.parametrize(
    ("batch", "nearest"),
    [
        (3840, "batch=3836, batch=3843"),
        (7680, "batch=7679, batch=7686"),
        (15360, "batch=15358, batch=15365"),
        (23040, "batch=23037, batch=23044"),
        (30720, "batch=30716, batch=30723"),
    ],
)
def test_the_papers_batches_on_seven_ranks_are_refused_with_the_nearest_that_work(batch, nearest):
    with pytest.raises(ValueError, match=nearest):
        choose_micro_batch(batch, world_size=7, limit=256, bn_span=1)


def test_a_prime_batch_that_would_train_one_by_one_is_refused_with_useful_neighbours():
    with pytest.raises(ValueError, match="only divides into micro-batches of 1 within") as refusal:
        choose_micro_batch(7919, world_size=1, limit=256, bn_span=1)

    neighbours = str(refusal.value).split("Nearest batches that work: ")[1].split(";")[0]
    for batch in map(int, neighbours.split(", ")):
        assert choose_micro_batch(batch, world_size=1, limit=256, bn_span=1) >= 128


def test_a_batch_larger_than_the_epoch_is_refused():
    with pytest.raises(
        ValueError,
        match=r"^batch must not exceed the examples of an epoch; got batch=61441, "
        r"data\.num_train_examples=61440\. Use a smaller batch or a larger data set\.$",
    ):
        steps_per_epoch(61_440, 61_441)


def test_a_micro_batch_must_hold_whole_spans():
    with pytest.raises(
        ValueError,
        match=r"^micro_batch must be a multiple of bn_span; got micro_batch=100, bn_span=32\. "
        r"Use micro_batch=96, or bn_span=micro\.$",
    ):
        split_global_batch(3200, world_size=1, micro_batch=100, bn_span=32)


def test_ranks_may_make_a_span_together():
    split = split_global_batch(1024, world_size=4, micro_batch=64, bn_span=256)

    assert (split.ranks_per_span(256), split.ranks_per_span(64), split.ranks_per_span(32)) == (
        4,
        1,
        1,
    )


@pytest.mark.parametrize(
    ("world_size", "micro_batch", "nearest"), [(4, 48, 64), (4, 100, 128), (6, 64, 128)]
)
def test_ranks_that_cannot_make_a_span_are_refused_with_the_nearest_micro_batch(
    world_size, micro_batch, nearest
):
    with pytest.raises(
        ValueError,
        match=rf"^micro_batch must be a multiple of bn_span, or bn_span / n for n of the "
        rf"{world_size} ranks together; got micro_batch={micro_batch}, bn_span=256\. "
        rf"Use micro_batch={nearest}, or bn_span=micro\.$",
    ):
        split_global_batch(
            1024 * world_size, world_size=world_size, micro_batch=micro_batch, bn_span=256
        )


@pytest.mark.parametrize(
    ("bn_span", "said"),
    [
        (1, r"the number of ranks, 7; got batch=3840\. .*3843, or use other devices\.$"),
        (2, r"ranks x bn_span = 7 x 2 = 14; got batch=3840\. .*, or use another bn_span "),
    ],
)
def test_a_batch_that_ranks_cannot_share_is_refused_with_what_helps(bn_span, said):
    with pytest.raises(ValueError, match=rf"^batch must be a multiple of {said}"):
        choose_micro_batch(3840, world_size=7, limit=768, bn_span=bn_span)


@pytest.mark.parametrize(
    ("batch", "other"), [(3200, "other devices"), (3216, "another micro_batch")]
)
def test_a_batch_that_the_parts_cannot_make_is_refused_with_what_helps(batch, other):
    """No micro-batch helps where the ranks cannot share the batch."""
    with pytest.raises(
        ValueError,
        match=r"^batch must be a multiple of micro_batch x ranks = 32 x 3 = 96; "
        rf"got batch={batch}\. Nearest that work: batch=3168, batch=3264, or use {other}\.$",
    ):
        split_global_batch(batch, world_size=3, micro_batch=32, bn_span=32)
