"""The average is the exponential one of the weights after each step, from the initial ones."""

import pytest
import torch
from torch import nn

from lightning_modules.methods.weight_average import WeightAverage


def test_each_step_counts_once_whatever_accumulation_does(fit, line, batches):
    """The gradient is w, so with a rate of 0.1 weights are 1, 0.9, 0.81; decay 0.5."""
    module, average = line(), WeightAverage(decay=0.5)

    fit(module, [average], batches(4))

    average.swap(module)
    averaged = module.weight
    average.swap(module)
    assert module.weight == pytest.approx(0.81)
    assert averaged == pytest.approx((0.95 + 0.81) / 2)


def test_it_goes_on_from_a_checkpoint(fit, line, batches, tmp_path):
    whole, resumed = line(), line()
    averages = [WeightAverage(decay=0.5) for _ in range(3)]
    fit(whole, [averages[0]], batches(4), epochs=2)
    fit(line(), [averages[1]], batches(4), epochs=1, save=tmp_path / "one.ckpt")

    fit(resumed, [averages[2]], batches(4), epochs=2, resume=tmp_path / "one.ckpt")

    assert resumed.weight == whole.weight
    assert averages[2].state_dict() == averages[0].state_dict()
    assert averages[1].state_dict() != averages[0].state_dict()


def test_weights_keep_their_memory_formats(line):
    module, average = line(), WeightAverage(decay=0.5)
    module.layers = nn.Conv2d(2, 3, 3).to(memory_format=torch.channels_last)
    weights = module.layers.weight.detach().clone()
    average.setup(None, module, "fit")
    module.setup("fit")
    average.on_train_start(None, module)

    average.swap(module)

    torch.testing.assert_close(module.layers.weight.detach(), weights)
    assert module.layers.weight.is_contiguous(memory_format=torch.channels_last)
