"""Running statistics are merged once an epoch, and what was seen of one survives a stop."""

import pytest
import torch
from torch import nn

from lightning_modules.callbacks.follow_plan import FollowPlan
from lightning_modules.callbacks.running_statistics import RunningStatistics
from lightning_modules.layers.batch_position import StepPosition
from lightning_modules.layers.ghost_batchnorm import fix_batchnorm_span, ghost_batchnorms


@pytest.fixture
def normed(line, plan):
    """A module with a ghost BatchNorm of spans of 2, and the callbacks that serve it."""

    def make():
        position, module = StepPosition(), line()
        module.layers = nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 1)).double()
        module.layers = fix_batchnorm_span(module.layers, span=2, position=position)
        (layer,) = ghost_batchnorms(module)
        return module, layer, [FollowPlan(plan(), position), RunningStatistics(plan(), position)]

    return make


def test_the_statistics_of_an_epoch_are_those_of_its_spans_in_order(fit, normed, batches):
    module, layer, callbacks = normed()

    fit(module, callbacks, [*batches(3), *batches(1, 5.0)])

    mean = 0.0
    for value in (1, 1, 1, 5):
        mean = 0.9 * mean + 0.1 * value
    assert layer.running_mean.item() == pytest.approx(mean)
    assert callbacks[1].state_dict() == {}


@pytest.mark.parametrize("shares", [(1.0,), (0.25, 0.75)], ids=["same", "2 ranks to 1"])
def test_an_epoch_goes_on_with_what_all_ranks_had_seen(fit, normed, batches, shares):
    """Terms of 0.3 after 2 of 4 spans, weighed down by 0.9 for each of the other two."""
    module, layer, (position, statistics) = normed()
    fit(module, [position, statistics], batches(2))  # finds the layers
    layer.running_mean.zero_()
    terms = torch.tensor([0.3, 0.0]).double()
    ranks = [[{"terms": share * terms, "spans": 2, "keep": 0.9}] for share in shares]

    statistics.load_state_dict({"ranks": ranks})
    statistics.on_train_start(None, module)

    layer.merge_ranks(4)
    assert layer.running_mean.item() == pytest.approx(0.3 * 0.9**2)
