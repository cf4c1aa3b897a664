"""The distance from the start is the norm of all parameters minus their first values."""

import pytest
import torch
from pytorch_lightning import LightningModule
from torch import nn

from lightning_modules.callbacks.distance import DistanceFromStart


class FirstRank:
    is_global_zero = True


class OtherRank:
    is_global_zero = False


def distance_after(change, trainer=FirstRank):
    model = LightningModule()
    model.layers = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    distance = DistanceFromStart()
    distance.setup(trainer, model, "fit")
    model.setup("fit")
    with torch.no_grad():
        change(model.layers)
    distance.on_evaluated(trainer, model)
    return distance.columns["distance_from_start"]


def move(model):
    model[0].weight[1, 2] += 3
    model[1].bias[0] -= 4
    model[1].running_mean += 100  # not a weight


def test_a_move_by_3_in_one_layer_and_4_in_another_is_a_distance_of_5():
    assert distance_after(move) == pytest.approx(5, rel=1e-6)


def test_only_the_first_rank_measures():
    assert distance_after(move, OtherRank) is None


def test_two_steps_of_gradient_descent(fit, line, batches):
    """From 1 to 0.81 in two steps."""
    distance = DistanceFromStart()

    fit(line(), [distance], batches(4))

    assert distance.columns["distance_from_start"] == pytest.approx(0.19, rel=1e-12)
