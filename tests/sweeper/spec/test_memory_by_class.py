"""The memory of a rank by class, on the line through two traced micro-batches."""

import pytest

from sweeper.spec.run_memory import CLASSES, MemoryTrace

GIB = 2**30


def bytes_of(*gib):
    return dict(zip(CLASSES, (int(size * GIB) for size in gib), strict=True))


def test_classes_are_affine_in_the_micro_batch():
    """Activations of a quarter GiB, and a sixteenth for each example."""
    trace = MemoryTrace(classes={4: bytes_of(1, 1, 2, 0.5, 0.25), 8: bytes_of(1, 1, 2, 0.75, 0.5)})

    assert trace.classes_at(20) == dict(zip(CLASSES, (1, 1, 2, 1.5, 1.25), strict=True))


def test_from_one_size_only_what_examples_take_grows():
    trace = MemoryTrace(classes={4: bytes_of(1, 1, 2, 0.5, 0.25)})

    assert trace.classes_at(8) == dict(zip(CLASSES, (1, 1, 2, 1, 0.5), strict=True))


def test_no_class_is_below_nothing():
    trace = MemoryTrace(classes={4: bytes_of(1, 1, 2, 1, 1), 8: bytes_of(1, 1, 2, 3, 1)})

    assert trace.classes_at(1)["activations"] == 0


def test_it_survives_its_file():
    trace = MemoryTrace(classes={4: bytes_of(1, 1, 2, 1, 1)}, held_gib=0.5)

    assert MemoryTrace.model_validate_json(trace.model_dump_json()) == trace


def test_of_what_could_not_be_traced_nothing_is_known():
    assert MemoryTrace(why_not="it failed").classes_at(4) is None


@pytest.mark.parametrize("held", [float("nan"), float("inf")])
def test_numbers_are_finite(held):
    with pytest.raises(ValueError, match="finite"):
        MemoryTrace(held_gib=held)


def test_small_blocks_are_kept_and_large_ones_given_back():
    """64 blocks of 16 MiB; with twice the examples they have 32 MiB, which are given back."""
    size = 2**24
    trace = MemoryTrace(classes={4: bytes_of(0, 0, 0, 1, 0)}, sizes={size: 64}, held_gib=0.5)

    assert trace.other_gib(4) == pytest.approx(0.5 + 0.02 + 0.65)
    assert trace.other_gib(8) == pytest.approx(0.5 + 0.02)


def test_a_checkpoint_may_need_more_than_activations_did():
    """3 GiB are written to memory; half a GiB of activations, in large blocks, is gone by then."""
    trace = MemoryTrace(classes={4: bytes_of(1, 1, 2, 0.5, 0)}, held_gib=0.5)

    assert trace.other_gib(4) == pytest.approx(0.5 + 0.02 + 2.5)
