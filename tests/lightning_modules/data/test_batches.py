"""What each rank trains on: the same examples in the same steps, whatever the layout."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from lightning_modules.data.batches import MicroBatches
from lightning_modules.data.digits import Digits, _affine_matrices, _grid
from lightning_modules.data.randomness import epoch_order, example_uniforms
from lightning_modules.rank_plan import RankPlan
from sweeper.spec.run_spec import run_spec


@pytest.fixture(scope="module")
def digits() -> Digits:
    return Digits(num_train_examples=2000, num_val_examples=360, validation_fold=0)


@pytest.fixture
def steps_of(digits, config):
    """Positions trained on in each step by all ranks together, shape (steps, global_batch)."""

    def steps(*, world_size: int, accumulation_steps: int, epoch: int) -> torch.Tensor:
        micro = 480 // world_size // accumulation_steps
        data = {**config()["data"], "num_train_examples": 2000}
        layout = {"micro_batch": micro, "bn_span": "micro", "devices": world_size}
        spec = run_spec(config(batch=480, data=data, **layout))
        parts = []
        for rank in range(world_size):
            batches = MicroBatches(digits, RankPlan(spec, rank=rank), seed=7)
            batches.set_epoch(epoch)
            assert len(batches) == 4 * accumulation_steps
            parts.append(torch.stack(list(batches.positions())).view(4, -1))
        return torch.cat(parts, dim=1)

    return steps


@pytest.mark.parametrize(("world_size", "accumulation_steps"), [(1, 8), (2, 4), (4, 1), (4, 3)])
def test_layouts_see_the_same_examples_in_the_same_steps(steps_of, world_size, accumulation_steps):
    whole = steps_of(world_size=1, accumulation_steps=1, epoch=2)

    parts = steps_of(world_size=world_size, accumulation_steps=accumulation_steps, epoch=2)

    assert torch.equal(parts, whole)


def test_an_epoch_shows_no_example_twice_and_epochs_differ(steps_of):
    first = steps_of(world_size=1, accumulation_steps=1, epoch=0).flatten()
    second = steps_of(world_size=1, accumulation_steps=1, epoch=1).flatten()

    assert len(first.unique()) == len(first) == 4 * 480
    assert not torch.equal(first, second)


def test_the_order_is_a_permutation_from_seed_and_epoch():
    order = epoch_order(3, 5, 1000)

    assert np.array_equal(np.sort(order), np.arange(1000))
    assert np.array_equal(order, epoch_order(3, 5, 1000))
    assert not np.array_equal(order, epoch_order(4, 5, 1000))
    assert not np.array_equal(order, epoch_order(3, 6, 1000))


def test_a_draw_belongs_to_its_example_not_to_the_company_it_is_drawn_in():
    together = example_uniforms(1, 2, np.arange(100), 3)
    alone = example_uniforms(1, 2, np.array([42]), 3)

    assert np.array_equal(together[42], alone[0])
    assert not np.array_equal(together, example_uniforms(1, 3, np.arange(100), 3))


def test_draws_are_uniform():
    draws = example_uniforms(0, 0, np.arange(100_000), 2)

    # Mean 1/2 and variance 1/12, each within five standard errors.
    assert abs(draws.mean() - 0.5) < 5 * np.sqrt(1 / 12 / draws.size)
    assert abs(draws.var() - 1 / 12) < 5 * np.sqrt(1 / 180 / draws.size)
    assert abs(np.corrcoef(draws.T)[0, 1]) < 5 / np.sqrt(len(draws))
    assert draws.min() >= 0
    assert draws.max() < 1


@pytest.mark.parametrize("fold", range(5))
def test_validation_images_are_real_untouched_and_held_out(fold):
    from sklearn.datasets import load_digits

    size = 360 if fold < 2 else 359
    digits = Digits(num_train_examples=100, num_val_examples=size, validation_fold=fold)
    images, labels = digits.val_examples(0, digits.num_val_examples)
    real = load_digits()

    held_out = real["images"][fold::5] / 16
    shown = images[:, 0] * 0.376 + 0.305
    np.testing.assert_allclose(shown.numpy(), held_out, atol=1e-6)
    assert np.array_equal(labels.numpy(), real["target"][fold::5])


def test_a_view_is_a_function_of_seed_epoch_and_example(digits):
    digits.set_epoch(5, 1)
    all_views, _ = digits.train_examples(torch.arange(2000))
    some, _ = digits.train_examples(torch.tensor([7, 3]))
    digits.set_epoch(5, 2)
    later, _ = digits.train_examples(torch.arange(2000))
    digits.set_epoch(5, 1)
    again, _ = digits.train_examples(torch.arange(2000))

    assert torch.equal(some, all_views[[7, 3]])
    assert torch.equal(again, all_views)
    assert not torch.equal(later, all_views)


def test_a_view_has_the_bits_of_torchs_affine_grid():
    draws = example_uniforms(3, 2, np.arange(2000), 6)
    grid = functional.affine_grid(
        torch.from_numpy(_affine_matrices(draws)), [2000, 1, 8, 8], align_corners=False
    )

    assert torch.equal(_grid(torch.from_numpy(_affine_matrices(draws))), grid)


def test_a_view_shows_the_digit_of_its_label(digits):
    """The nearest class mean of the real images names far more than a tenth of the views."""
    digits.set_epoch(0, 0)
    views, labels = digits.train_examples(torch.arange(2000))
    images, real_labels = digits.val_examples(0, digits.num_val_examples)
    means = torch.stack([images[real_labels == c].mean(0).flatten() for c in range(10)])

    nearest = torch.cdist(views.flatten(1), means).argmin(1)

    assert (nearest == labels).float().mean() > 0.4


def test_a_fold_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="validation_fold must be 0 to 4; got validation_fold=5"):
        Digits(num_train_examples=10, num_val_examples=360, validation_fold=5)
