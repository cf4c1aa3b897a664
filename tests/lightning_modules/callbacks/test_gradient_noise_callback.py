"""The noise of a gradient is that between its micro-batches.

Micro-batches of 1s and of 3s have the gradients w and 9 w. At w = 1: a mean square of 41, a squared
mean of 25, so a signal of 2 * 25 - 41 = 9 and a variance of (41 - 25) * 2 * 2 = 64.
"""

import math
from types import SimpleNamespace

import pytest
import torch

from lightning_modules.callbacks.measured_noise import GradientNoise


@pytest.fixture
def noise(plan):
    return GradientNoise(plan(), span=2)


@pytest.fixture
def unequal(batches):
    """Two steps: one halves the weight to 0.5; the other has two equal gradients of 0.5."""
    return [*batches(1), *batches(1, 3.0), *batches(2)]


def test_the_noise_of_a_step_is_known_before_the_step_is_taken(fit, line, noise, unequal, noting):
    steps = noting("on_before_optimizer_step", lambda *_: noise.step_noise)

    fit(line(), [noise, steps], unequal)

    assert [(step.signal, step.variance) for step in steps.noted] == [
        pytest.approx((9, 64)),
        pytest.approx((0.25, 0), abs=1e-12),
    ]


def test_the_noise_scale_of_an_epoch_is_a_ratio_of_means(fit, line, noise, unequal):
    fit(line(), [noise], unequal)

    assert noise.columns["noise_scale"] == pytest.approx(64 / 9.25)
    numerator, denominator = noise.columns["gradient_variance"], noise.columns["gradient_signal"]
    assert (numerator, denominator) == pytest.approx((32, 9.25 / 2))


@pytest.mark.parametrize(("finite", "scale"), [(2, pytest.approx(64 / 9)), (0, None)])
def test_a_step_that_is_not_finite_is_not_counted(
    fit, line, noise, unequal, batches, finite, scale
):
    fit(line(), [noise], [*unequal[:finite], *batches(2, math.inf)])

    assert noise.step_noise is None
    assert noise.columns["noise_scale"] == scale
    assert (noise.columns["norm_test"] is None) == (scale is None)


def test_an_epoch_goes_on_with_the_steps_it_has_had(fit, line, noise, batches):
    """A signal of 9 and a variance of 64 from before; 1 and 0 from a step of equal gradients."""
    noise.load_state_dict({"smoothing": 1.0, "signal": 9.0, "variance": 64.0, "weight": 1.0})

    fit(line(), [noise], batches(2))

    assert noise.columns["noise_scale"] == pytest.approx(64 / 10)
    assert noise.state_dict()["weight"] == 0


@pytest.mark.parametrize(
    ("epoch", "values", "loss_scale", "signal", "variance"),
    [
        (0, (1, 3), 1, 9, 64),
        (0, (1, 3), 4, 9, 64),
        (1, (1, 1, 3, 3), 1, (8 * 25 - 2 * 41) / (8 - 2), (41 - 25) / (1 / 2 - 1 / 8)),
    ],
    ids=["plain", "losses scaled as with 16-mixed", "grown batch"],
)
def test_a_step_counts_its_own_batch_and_its_unscaled_gradients(
    plan, growing, line, epoch, values, loss_scale, signal, variance
):
    module, noise = line(), GradientNoise(plan(schedule=growing(1)), span=2)
    trainer = SimpleNamespace(
        current_epoch=epoch,
        accumulate_grad_batches=len(values),
        precision_plugin=SimpleNamespace(scaler=SimpleNamespace(get_scale=lambda: loss_scale)),
    )
    noise.on_train_start(trainer, module)
    for value in values:
        outputs = module.layers(torch.full((2, 1), value).double())
        (outputs.square().mean() / 2 * loss_scale / len(values)).backward()
    module.layers[0].weight.grad /= loss_scale

    noise.on_before_optimizer_step(trainer, module, None)

    assert (noise.step_noise.signal, noise.step_noise.variance) == pytest.approx((signal, variance))
