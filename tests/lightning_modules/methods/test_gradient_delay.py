"""Late gradients on a quadratic: ``w <- w - a w_(t - delay)``, with the first weights before that.

With a step of ``a`` times the curvature, it is stable below ``2 sin(pi / (2 (2 delay + 1)))``.
"""

import math

import pytest
from pytorch_lightning.callbacks import Callback

from lightning_modules.methods.gradient_delay import GradientDelay


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
