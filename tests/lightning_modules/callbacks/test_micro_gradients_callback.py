"""An optimizer that compares micro-batches is shown each one's gradient."""

import pytest
import torch

from lightning_modules.callbacks.micro_gradients import WatchMicroGradients
from lightning_modules.optimizers.foreach import ForeachOptimizer
from lightning_modules.optimizers.micro_gradients import MicroGradients, squares


class Comparing(ForeachOptimizer):
    """Takes no step; notes the mean square of the micro-batches' gradients."""

    def __init__(self, parameters):
        super().__init__(parameters)
        self.micro_gradients, self.mean_squares = MicroGradients(squares), []

    def _update(self, parameters, gradients, group):
        del gradients, group
        (mean_square,) = self.micro_gradients.means(parameters)
        self.mean_squares.append(mean_square.item())


def test_the_optimizer_sees_the_gradient_of_each_micro_batch(fit, line, batches):
    """Gradients of 1 and 9, then of 1 and 1: mean squares of 41 and 1."""
    module = line()
    optimizer = Comparing(module.parameters())
    module.configure_optimizers = lambda: optimizer

    fit(module, [WatchMicroGradients()], [*batches(1), *batches(1, 3.0), *batches(2)])

    assert optimizer.mean_squares == pytest.approx([41, 1])


def test_an_optimizer_that_does_not_ask_is_left_alone(fit, line, batches):
    module = line()

    fit(module, [WatchMicroGradients()], batches(2))

    assert module.weight == pytest.approx(0.9)
    assert isinstance(module.configure_optimizers(), torch.optim.SGD)
