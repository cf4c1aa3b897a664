"""Gradients are weighed by the signal-to-noise ratio between the micro-batches of their step.

Micro-batches of 1s and of 3s have the gradients w and 9 w, and two weights for which they are equal
and opposite: the layer's ratios are normed by their mean.
"""

import math

import pytest
import torch
from line import Line
from torch import nn

from lightning_modules.callbacks.measured_noise import GradientNoise
from lightning_modules.methods.variance_reduction import WeighGradients, signal_to_noise

SETTINGS = {"floor": 0.1, "ratio_decay": 0.0}


class Plane(Line):
    """The loss ``mean(x . w)`` of two weights at 0, by SGD with a rate of 1."""

    def __init__(self, **settings):
        super().__init__()
        self.layers = nn.Linear(2, 1, bias=False).double()
        nn.init.zeros_(self.layers.weight)
        self._settings = settings

    def training_step(self, batch, batch_idx):
        del batch_idx
        return {"loss": self.layers(batch[0]).mean()}

    def configure_optimizers(self):
        groups = [{"params": [*self.parameters()], **SETTINGS, **self._settings}]
        return torch.optim.SGD(groups, lr=1.0)

    @property
    def weights(self):
        return self.layers.weight.flatten().tolist()


def inputs(*gradients):
    return [(torch.tensor([gradient]).double(),) for gradient in gradients]


# Both micro-batches agree about the first weight, with a ratio of 100 against 1: 2 and 0.02 when
# normed, 1 and 0.1 when clipped.
UNEQUAL = inputs((1.1, 2.0), (0.9, 0.0))


def test_a_step_is_by_the_weighed_gradient(fit):
    """Gradients of (1, 1) weighed by 1 and 0.1."""
    module = Plane()

    fit(module, [WeighGradients()], UNEQUAL)

    assert module.weights == pytest.approx([-1, -0.1])


def test_the_noise_is_that_of_the_gradient_as_it_was(fit, plan):
    noise = GradientNoise(plan(), span=2)

    fit(Plane(), [noise, WeighGradients()], UNEQUAL)

    assert noise.gradient_norm == pytest.approx(math.sqrt(2))


def test_the_average_ratio_of_a_resumed_run_goes_on(fit, tmp_path):
    """Ratios of 1 and 0.1, then of 0.1 and 1: their averages weigh a third and two thirds."""
    before, after = (Plane(ratio_decay=0.5) for _ in range(2))
    turned = inputs((2.0, 1.1), (0.0, 0.9))

    fit(before, [WeighGradients()], UNEQUAL, save=tmp_path / "one.ckpt")
    fit(after, [WeighGradients()], turned, epochs=2, resume=tmp_path / "one.ckpt")

    moved = [x - y for x, y in zip(after.weights, before.weights, strict=True)]
    assert before.weights == pytest.approx([-1, -0.1])
    assert moved == pytest.approx([-(1 + 2 * 0.1) / 3, -(0.1 + 2 * 1) / 3])


def test_a_step_that_the_loss_scaler_skips_is_not_averaged(fit):
    """Its ratios are not numbers."""

    class Scaling(WeighGradients):
        def on_before_optimizer_step(self, trainer, pl_module, optimizer):
            trainer.precision_plugin.scaler = torch.amp.GradScaler("cpu", enabled=False)
            super().on_before_optimizer_step(trainer, pl_module, optimizer)

    weigh = Scaling()

    fit(Plane(ratio_decay=0.5), [weigh], inputs((math.inf, 1.0), (1.0, 1.0)))

    assert weigh.state_dict() == {"averages": [], "steps": 0}


@pytest.mark.parametrize("size", [1e-13, 1.0, 1e15])
def test_where_all_parts_agree_the_gradient_is_kept_whatever_its_size(size):
    """In float32, where the square of 1e15 over 1e-30 would overflow."""
    gradients = [torch.full((3,), size), torch.zeros(3)]

    agreed, nothing = (signal_to_noise(g, g.square(), floor=0.1) for g in gradients)

    assert agreed.tolist() == [1.0, 1.0, 1.0]
    assert nothing.tolist() == pytest.approx([0.1, 0.1, 0.1])


def test_the_ratio_of_small_gradients_is_that_of_large_ones():
    """Ratios of 1 and 3 become 0.5 and 1."""
    signals = torch.tensor([1.0, 3.0]).sqrt()

    found = signal_to_noise(signals * 1e-13, (signals**2 + 1) * 1e-26, floor=0.1)

    assert found.tolist() == pytest.approx([0.5, 1.0], rel=1e-5)
