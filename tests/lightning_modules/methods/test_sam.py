"""SAM descends by the gradient at worse weights and reports what was measured at the weights."""

import pytest
import torch
from torch import nn

import lightning_modules.methods.sam as sam_module
from lightning_modules.callbacks.epoch_means import TrainingMetrics
from lightning_modules.layers.batch_position import StepPosition
from lightning_modules.layers.ghost_batchnorm import fix_batchnorm_span, ghost_batchnorms
from lightning_modules.methods.sam import SAM


def test_sams_step_is_the_one_computed_by_hand(fit, line):
    """L = |w|^2 / 2 at (3, 4), rho 0.5, SGD with rate 0.1: to (2.67, 3.56)."""
    module = line()
    module.layers = nn.Linear(2, 2, bias=False).double()
    with torch.no_grad():
        module.layers.weight.copy_(torch.tensor([[3.0, 0.0], [0.0, 4.0]]))
    halves = torch.eye(2).double() * 2**0.5  # the mean over outputs and examples becomes a sum
    halves = halves * 2**0.5

    fit(module, [SAM(rho=0.5)], [(halves,)], accumulate=1)

    assert module.layers.weight.diag().tolist() == pytest.approx([2.67, 3.56])


def test_metrics_are_those_at_the_weights(fit, line, batches):
    """At w = 1 the loss is 1 / 2; at 1 + rho it would be more."""
    module, metrics = line(), TrainingMetrics(("loss",))

    fit(module, [SAM(rho=1.0), metrics], batches(1), accumulate=1)

    assert metrics.columns == {"train_loss": 0.5}
    assert module.losses == [0.5, 2.0]


def test_the_second_pass_leaves_the_running_statistics_alone(fit, line):
    plain = nn.Sequential(nn.Linear(1, 3), nn.BatchNorm1d(3)).double()
    module, position = line(), StepPosition()
    module.layers = fix_batchnorm_span(plain, span=4, position=position)
    position.move(epoch=0, step=0, first_example=0, examples=8)
    inputs = torch.randn(8, 1, generator=torch.Generator().manual_seed(0)).double()

    fit(module, [SAM(rho=0.5)], [(inputs,)], accumulate=1)

    (layer,) = ghost_batchnorms(module)
    assert layer.state.is_tracking
    assert layer.state_of_terms()["spans"] == 2  # not four


class _InFloat16(torch.autograd.Function):
    """Gradients on their way back, as float16 holds them."""

    @staticmethod
    def forward(_, values):
        return values.clone()

    @staticmethod
    def backward(_, gradients):
        return gradients.half().double()


class InFloat16(nn.Module):
    def forward(self, values):
        return _InFloat16.apply(values)


def test_the_climb_follows_gradients_that_float16_holds_only_scaled(
    fit, line, batches, monkeypatch
):
    """The gradient of 1e-9 is 0 in float16, and not times 2**20; w climbs from 1 to 2."""
    module = line(InFloat16())
    monkeypatch.setattr(sam_module, "loss_scale", lambda trainer: 2.0**20)

    fit(module, [SAM(rho=1.0)], batches(1, 1e-9), accumulate=1)

    at_w, climbed = module.losses
    assert climbed / at_w == pytest.approx(4)
