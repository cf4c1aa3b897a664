"""SAM and ConAdv against hand-computed steps."""

import pytest
import torch
from torch import nn

from lightning_modules.gradients.sharpness import SAM, ConAdv
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


def conadv_gradient(model, perturbation, inputs):
    model.weights.grad = None
    perturbation.loss(model, inputs, half_square, half_square(model(inputs))).backward()
    return model.weights.grad.tolist()


def test_conadvs_loss_is_half_clean_and_half_adversarial():
    """l = (w x)^2 / 2 at w = (2, -1), x = (1, 1): x' = x + 0.1 sign(w^2 x) = (1.1, 1.1)."""
    model, inputs = Weights(2.0, -1.0), torch.ones(2, dtype=torch.float64)
    perturbation = ConAdv(model, radius=0.1, stale_steps=0)

    gradient = conadv_gradient(model, perturbation, inputs)

    half = (1 + 1.1**2) / 2  # of x^2 and x'^2; the gradient is w x^2
    assert gradient == pytest.approx([2 * half, -1 * half])


def linear(outputs):
    return outputs.sum()


@pytest.mark.parametrize("stale_steps", [0, 1, 2])
def test_conadv_climbs_by_the_weights_of_some_steps_ago(stale_steps):
    """l = w x: x' moves by the sign of the old weight, here 5, -5, 5, -5 ... before each step."""
    model, inputs = Weights(5.0), torch.ones(1, dtype=torch.float64)
    perturbation = ConAdv(model, radius=0.1, stale_steps=stale_steps)
    history = [5.0]
    for step in range(4):
        perturbation.before_step(model)
        history.append(5.0 * (-1) ** (step + 1))
        with torch.no_grad():
            model.weights.fill_(history[-1])
    model.weights.grad = None

    perturbation.loss(model, inputs, linear, linear(model(inputs))).backward()

    old = history[-1 - stale_steps]
    adversarial = 1 + 0.1 * (1 if old > 0 else -1)
    assert model.weights.grad.item() == pytest.approx((1 + adversarial) / 2)


def test_conadv_refuses_inputs_that_cannot_be_moved():
    model = Weights(5.0)

    with pytest.raises(
        ValueError, match=r"^perturbation=conadv must have inputs that can be moved a"
    ):
        ConAdv(model, radius=0.1, stale_steps=0).loss(
            model, torch.ones(1, dtype=torch.int64), linear, torch.tensor(0.0)
        )


@pytest.mark.parametrize("kind", ["sam", "conadv"])
def test_the_second_pass_leaves_the_running_statistics_alone(kind):
    plain = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    model = fix_batchnorm_span(plain, span=4, position=StepPosition())
    perturbation = SAM(rho=0.5) if kind == "sam" else ConAdv(model, radius=0.5, stale_steps=0)
    inputs = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
    clean = model(inputs).square().mean()
    (layer,) = span_batchnorms(model)
    before = [terms.clone() for terms in (layer._mean_terms, layer._var_terms)]

    perturbation.loss(model, inputs, lambda outputs: outputs.square().mean(), clean)

    torch.testing.assert_close([layer._mean_terms, layer._var_terms], before, rtol=0, atol=0)
    layer.merge_ranks(2)  # two spans were seen, not four
    assert layer.is_tracking
