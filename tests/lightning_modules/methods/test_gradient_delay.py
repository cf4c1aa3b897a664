"""Late gradients on a quadratic: ``w <- w - a w_(t - delay)``, with the first weights before that.

With a step of ``a`` times the curvature, it is stable below ``2 sin(pi / (2 (2 delay + 1)))``.
With delays 0 to k - 1 for k slices, ``z**k - z**(k-1) + (a/k) (1 + ... + z**(k-1))`` has a root on
the unit circle at an angle of pi / k: it is stable below ``2 k sin(pi / (2 k))**2``.
"""

import math

import numpy as np
import pytest
from pytorch_lightning.callbacks import Callback

from lightning_modules.callbacks.follow_plan import FollowPlan
from lightning_modules.layers.batch_position import StepPosition
from lightning_modules.methods.gradient_delay import GradientDelay, SliceDelays


class Weights(Callback):
    def __init__(self):
        self.seen = []

    def on_train_batch_end(self, _, module, *__):
        self.seen.append(module.weight)


@pytest.fixture
def walk(fit, line, batches):
    """The weights after each step, from 1; a step of the module's rate of 0.1 times value^2."""

    def train(delay, a, steps):
        weights = Weights()
        late = [GradientDelay(delay=delay)] if delay else []
        fit(line(), [*late, weights], batches(steps, math.sqrt(10 * a)), accumulate=1)
        return weights.seen

    return train


@pytest.mark.parametrize(
    ("delay", "expected"),
    [
        (0, [0.75, 0.5625, 0.421875]),
        (1, [0.75, 0.5, 0.3125, 0.1875, 0.109375, 0.0625]),
        (2, [0.75, 0.5, 0.25, 0.0625, -0.0625, -0.125]),
    ],
)
def test_each_step_applies_the_gradient_of_some_steps_before(walk, delay, expected):
    assert walk(delay, 0.25, len(expected)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("delay", "bound"), [(1, 1.0), (2, 0.618034), (3, 0.445042), (4, 0.347296), (5, 0.284630)]
)
def test_the_largest_stable_rate_falls_with_the_delay(walk, delay, bound):
    below, above = (max(map(abs, walk(delay, bound * x, 400)[-20:])) for x in (0.95, 1.05))

    assert below < 0.5
    assert above > 2


def test_the_fastest_rate_without_oscillation_is_that_of_the_double_root(walk):
    """A delay of 1: at 1/4 no weight is below 0, above it one is."""
    assert min(walk(1, 0.25, 60)) > 0
    assert min(walk(1, 0.27, 60)) < 0


def test_gradients_that_are_held_go_on_from_a_checkpoint(fit, line, batches, tmp_path):
    whole, resumed = line(), line()
    fit(whole, [GradientDelay(delay=2)], batches(6), epochs=2)
    fit(line(), [GradientDelay(delay=2)], batches(6), epochs=1, save=tmp_path / "one.ckpt")

    fit(resumed, [GradientDelay(delay=2)], batches(6), epochs=2, resume=tmp_path / "one.ckpt")

    assert resumed.weight == whole.weight


@pytest.fixture
def slices(fit, line, batches, plan):
    """The weights after each step of as many micro-batches as delays, each a slice of its own."""

    def train(delays, a, steps, *, module=None, **words):
        k, weights, position = len(delays), Weights(), StepPosition()
        split = plan(examples=2 * k * steps, batch=2 * k)
        late = [FollowPlan(split, position), SliceDelays(split, position, delays=delays)]
        numbers = batches(k * steps, math.sqrt(10 * a))
        fit(module or line(), [*late, weights], numbers, accumulate=k, **words)
        return weights.seen[k - 1 :: k]

    return train


def test_each_slice_sees_the_weights_of_its_own_delay(slices):
    """At 1/4: 1 - (1 + 1) / 8, then 3/4 - (3/4 + 1) / 8, then 17/32 - (17/32 + 3/4) / 8."""
    assert slices([0, 1], 0.25, 3) == pytest.approx([3 / 4, 17 / 32, 95 / 256])
    assert slices([2, 2], 0.25, 6) == pytest.approx([0.75, 0.5, 0.25, 0.0625, -0.0625, -0.125])


@pytest.mark.parametrize(
    ("delays", "bound"), [([0, 1], 2.0), ([0, 1, 2], 1.5), ([0, 1, 2, 3], 4 - 2 * math.sqrt(2))]
)
def test_the_largest_stable_rate_of_delays_from_0_on(slices, delays, bound):
    below, above = (max(map(abs, slices(delays, bound * x, 400)[-20:])) for x in (0.95, 1.05))

    assert below < 0.5
    assert above > 2


def test_weights_that_slices_see_go_on_from_a_checkpoint(slices, line, tmp_path):
    whole, resumed = line(), line()
    slices([0, 3], 0.3, 6, module=whole, epochs=2)
    slices([0, 3], 0.3, 6, module=line(), epochs=1, save=tmp_path / "one.ckpt")

    slices([0, 3], 0.3, 6, module=resumed, epochs=2, resume=tmp_path / "one.ckpt")

    assert resumed.weight == whole.weight


@pytest.mark.parametrize(
    ("delays", "variance"), [("null", 0.2 / 1.8), ("1", 0.136364), ("[0,1]", 0.2 * 1.1 / (2 * 0.9))]
)
def test_the_stationary_variance_is_that_of_the_delays(run_words, delays, variance):
    """Over that of a step's noise, at a rate of 0.2; for [0,1] an AR(2) with 0.9 and -0.1.

    2,000 weights of curvature 1, whose noise per example is 64 times the variance of one of 64.
    """
    record = run_words(
        "+experiment=noisy_quadratic", "model.decay=0", "model.noise_scale=64", "batch=64",
        "base_lr=0.2", "data.length=2000", "epochs=6", "seed=0", f"gradient_delay={delays}",
        num_train_examples=20 * 64,
    )  # fmt: skip

    losses = [row["val_loss"] for row in record["curve"][1:]]
    assert np.mean(losses) == pytest.approx(2000 / 2 * variance, rel=0.04)
