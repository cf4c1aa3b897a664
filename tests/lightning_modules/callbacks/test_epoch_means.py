"""Means over an epoch weigh each example once."""

import pytest
import torch

from lightning_modules.callbacks.epoch_means import EpochSums, TrainingMetrics


def test_sums_over_an_epoch_weigh_each_example_once():
    sums = EpochSums(("loss", "accuracy"), torch.device("cpu"))
    sums.add({"loss": torch.tensor(4.0), "accuracy": torch.tensor(3)}, 4)
    sums.add({"loss": torch.tensor(5.0), "accuracy": torch.tensor(0)}, 1)

    assert sums.means() == pytest.approx({"loss": 1.8, "accuracy": 0.6})


def test_a_modules_sums_become_columns_of_the_epoch(fit, line, batches):
    metrics = TrainingMetrics(("loss",))

    fit(line(), [metrics], [*batches(2), *batches(1, 3.0)], accumulate=3)

    assert metrics.columns == pytest.approx({"train_loss": (1 + 1 + 9) / 3 / 2})


def test_an_epoch_goes_on_with_the_sums_of_all_ranks(fit, line, batches):
    """Two ranks left 10 over 3 examples and 2 over 1; the loss of 2 more is 1 / 2 each."""

    class Resumed(TrainingMetrics):
        def setup(self, *_, **__):
            self.load_state_dict({"ranks": [torch.tensor([10.0, 3.0]), torch.tensor([2.0, 1.0])]})

    resumed = Resumed(("loss",))

    fit(line(), [resumed], batches(1), accumulate=1)

    assert resumed.columns == pytest.approx({"train_loss": (12 + 2 * 0.5) / 6})


def test_the_loss_of_a_module_without_sums_is_the_one_it_returned(fit, line, batches):
    """Lightning hands on a loss that it has divided for accumulation."""
    module, metrics = line(), TrainingMetrics(("loss",))
    with_sums = module.training_step
    module.training_step = lambda batch, batch_idx: with_sums(batch, batch_idx)["loss"]

    fit(module, [metrics], [*batches(2), *batches(1, 3.0)], accumulate=3)

    assert metrics.columns == pytest.approx({"train_loss": (1 + 1 + 9) / 3 / 2})
