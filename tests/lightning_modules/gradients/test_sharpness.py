"""SAM against a hand-computed step."""

import pytest
import torch
from torch import nn

from lightning_modules.gradients.sharpness import SAM
from lightning_modules.layers.ghost_batchnorm import fix_batchnorm_span, span_batchnorms
from lightning_modules.layers.position import StepPosition


class Weights(nn.Module):
    """Outputs its weights times the inputs."""

    def __init__(self, *values):
        super().__init__()
        self.weights = nn.Parameter(torch.tensor(values, dtype=torch.float64))

    def forward(self, inputs):
        return self.weights * inputs


def half_square(outputs):
    return outputs.square().sum() / 2


def test_sams_step_is_the_one_computed_by_hand():
    """L = |w|^2 / 2 at (3, 4), rho 0.5, SGD with rate 0.1: to (2.67, 3.56)."""
    model, inputs = Weights(3.0, 4.0), torch.ones(2, dtype=torch.float64)
    clean = half_square(model(inputs))

    SAM(rho=0.5).loss(model, inputs, half_square, clean).backward()

    stepped = model.weights.detach() - 0.1 * model.weights.grad
    assert stepped.tolist() == pytest.approx([2.67, 3.56])
    assert model.weights.tolist() == [3.0, 4.0]


def test_the_second_pass_leaves_the_running_statistics_alone():
    plain = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    model = fix_batchnorm_span(plain, span=4, position=StepPosition())
    perturbation = SAM(rho=0.5)
    inputs = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
    clean = model(inputs).square().mean()
    (layer,) = span_batchnorms(model)
    before = [terms.clone() for terms in (layer._mean_terms, layer._var_terms)]

    perturbation.loss(model, inputs, lambda outputs: outputs.square().mean(), clean)

    torch.testing.assert_close([layer._mean_terms, layer._var_terms], before, rtol=0, atol=0)
    layer.merge_ranks(2)  # two spans were seen, not four
    assert layer.is_tracking
