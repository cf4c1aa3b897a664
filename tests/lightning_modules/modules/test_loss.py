"""The loss of a micro-batch: cross-entropy unless the model has its own."""

import math

import pytest
import torch
from torch import nn

from lightning_modules.modules.classifier import score

MODEL = nn.Identity()


def test_equal_logits_cost_the_logarithm_of_the_classes():
    loss, correct = score(MODEL, torch.zeros(5, 8), torch.zeros(5, dtype=torch.int64))

    assert loss.item() == pytest.approx(math.log(8))
    assert correct.item() == 5  # of equal logits the first counts


def test_a_sequence_counts_as_one_example_that_may_be_partly_right():
    logits = 100 * nn.functional.one_hot(torch.tensor([[0, 1, 2, 3], [1, 1, 1, 1]])).float()
    labels = torch.tensor([[0, 1, 2, 0], [1, 1, 1, 1]])

    loss, correct = score(MODEL, logits, labels)

    assert loss.item() == pytest.approx(100 / 8)
    assert correct.item() == pytest.approx(3 / 4 + 1)


def test_the_mean_over_micro_batches_is_the_mean_over_the_batch():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(12, 6, 9, generator=generator, dtype=torch.float64)
    labels = torch.randint(9, (12, 6), generator=generator)

    whole, _ = score(MODEL, logits, labels)
    parts = [score(MODEL, logits[i : i + 4], labels[i : i + 4])[0] for i in (0, 4, 8)]

    assert torch.stack(parts).mean().item() == pytest.approx(whole.item(), rel=1e-14)


def test_a_model_may_have_a_loss_of_its_own():
    class Own(nn.Module):
        def score(self, outputs, labels):
            return (outputs - labels).square().mean(), torch.tensor(2)

    loss, correct = score(Own(), torch.tensor([1.0, 3.0]), torch.tensor([0.0, 0.0]))

    assert (loss.item(), correct.item()) == (5.0, 2)
