"""Which parameters decay and adapt."""

import sys

import pytest
import torch
from torch import nn

from lightning_modules.optimizers.from_timm import lars
from lightning_modules.train import parameter_groups


@pytest.fixture
def model():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 2))


def names(model, group):
    of = {id(parameter): name for name, parameter in model.named_parameters()}
    return {of[id(parameter)] for parameter in group["params"]}


def test_everything_decays_and_adapts_unless_exempted(model):
    (group,) = parameter_groups(model, exempt_norm_and_bias=False)

    assert names(model, group) == {name for name, _ in model.named_parameters()}
    assert group["adapt"]
    assert "weight_decay" not in group


def test_biases_and_norms_are_exempted_from_decay_and_trust(model):
    kept, exempt = parameter_groups(model, exempt_norm_and_bias=True)

    assert names(model, kept) == {"0.weight", "3.weight"}
    assert names(model, exempt) == {"0.bias", "1.weight", "1.bias", "3.bias"}
    assert (kept["adapt"], exempt["adapt"], exempt["weight_decay"]) == (True, False, 0.0)


LARS = {
    "lr": 1.0,
    "momentum": 0.0,
    "nesterov": False,
    "weight_decay": 0.5,
    "trust_coeff": 0.001,
    "eps": 0.0,
    "trust_clip": False,
}


def test_an_exempt_layer_takes_the_raw_rate(model):
    """MLPerf: no decay and a trust ratio of 1 on biases and norms, so w <- w - lr g."""
    optimizer = lars(parameter_groups(model, exempt_norm_and_bias=True), **LARS)
    bias = model[3].bias
    before = bias.detach().clone()
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 0.25)

    optimizer.step()

    torch.testing.assert_close(bias.detach(), before - 0.25)


def test_without_timm_its_optimizers_say_what_to_install(model, monkeypatch):
    monkeypatch.setitem(sys.modules, "timm.optim", None)
    message = (
        r"^optimizers lars, lamb, vr_lars, vr_lamb and muon need the package timm; it is not "
        r"installed\. Install it with: pip install 'batch-sweeper\[timm\]'$"
    )

    with pytest.raises(ValueError, match=message):
        lars(parameter_groups(model, exempt_norm_and_bias=False), **LARS)
