"""Adversarial examples are made with weights of an earlier step, and trained on."""

import pytest
import pytorch_lightning as pl
import torch
from line import Line
from torch import nn

from lightning_modules.layers.batch_position import StepPosition
from lightning_modules.layers.ghost_batchnorm import fix_batchnorm_span, ghost_batchnorms
from lightning_modules.methods.concurrent_adversary import ConAdv
from lightning_modules.modules.classifier import Classifier


class Sloped(Line):
    """The loss ``mean(w x)`` of one weight that begins at 0.5, by SGD with a rate of 1."""

    def __init__(self):
        super().__init__()
        nn.init.constant_(self.layers[0].weight, 0.5)
        self.weights = []

    def training_step(self, batch, batch_idx):
        del batch_idx
        return {"loss": self.layers(batch[0]).mean()}

    def on_train_batch_end(self, *_):
        self.weights.append(self.weight)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1.0)


@pytest.mark.parametrize(
    ("stale_steps", "weights"),
    [(0, [-0.6, -1.5, -2.4]), (1, [-0.6, -1.7, -2.6]), (2, [-0.6, -1.7, -2.8])],
)
def test_examples_are_moved_by_the_weights_of_some_steps_ago(fit, stale_steps, weights):
    """An input of 1 goes to 1.1 if the old weight is above 0, else to 0.9; that is the gradient."""
    module = Sloped()
    ones = (torch.ones(2, 1).double(), torch.zeros(2))

    fit(module, [ConAdv(radius=0.1, stale_steps=stale_steps)], [ones] * 3, accumulate=1)

    assert module.weights == pytest.approx(weights)


class BySGD(Classifier):
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.5)


def test_without_delay_it_is_ordinary_adversarial_training(fit):
    """Goodfellow et al. 2014, equation 4: x + radius sign(dL/dx) at the weights as they are."""
    pl.seed_everything(0, verbose=False)
    net, twin = (nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)) for _ in range(2))
    twin.load_state_dict(net.state_dict())
    batches = [(torch.randn(4, 3), torch.randint(2, (4,))) for _ in range(3)]

    fit(BySGD(net), [ConAdv(radius=0.25, stale_steps=0)], batches, accumulate=1)

    for inputs, labels in batches:
        inputs.requires_grad_()
        (slope,) = torch.autograd.grad(nn.functional.cross_entropy(twin(inputs), labels), inputs)
        twin.zero_grad()
        moved = inputs.detach() + 0.25 * slope.sign()
        nn.functional.cross_entropy(twin(moved), labels).backward()
        with torch.no_grad():
            for weight in twin.parameters():
                weight.add_(weight.grad, alpha=-0.5)
    for ours, theirs in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_the_pass_that_makes_examples_leaves_the_running_statistics_alone(fit):
    position, module = StepPosition(), Sloped()
    module.layers.append(nn.BatchNorm1d(1)).double()
    fix_batchnorm_span(module.layers, span=4, position=position)
    position.move(epoch=0, step=0, first_example=0, examples=8)
    inputs = torch.randn(8, 1, generator=torch.Generator().manual_seed(0)).double()

    fit(module, [ConAdv(radius=0.1, stale_steps=1)], [(inputs, inputs)], accumulate=1)

    (layer,) = ghost_batchnorms(module)
    assert layer.state.is_tracking
    assert layer.state_of_terms()["spans"] == 2  # not four
