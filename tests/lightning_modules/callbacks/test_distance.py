"""The distance from the start is the norm of all parameters minus their first values."""

import pytest
import torch
from torch import nn

from lightning_modules.callbacks.distance import DistanceFromStart


def test_a_model_that_has_not_moved_is_at_its_start():
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))

    assert DistanceFromStart(model).of(model) == 0.0


def test_a_move_by_3_in_one_layer_and_4_in_another_is_a_distance_of_5():
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    distance = DistanceFromStart(model)

    with torch.no_grad():
        model[0].weight[1, 2] += 3
        model[1].bias[0] -= 4
        model[1].running_mean += 100  # not a weight

    assert distance.of(model) == pytest.approx(5, rel=1e-6)


def test_two_steps_of_gradient_descent_on_a_constant_gradient():
    """Gradient 1 in 9 weights at a rate of 0.1: every step moves by 0.1 sqrt(9)."""
    model = nn.Linear(9, 1, bias=False).double()
    distance = DistanceFromStart(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    found = []
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(1, 9, dtype=torch.float64)).sum().backward()
        optimizer.step()
        found.append(distance.of(model))

    assert found == pytest.approx([0.3, 0.6], rel=1e-12)
