"""Identity blocks and label smoothing against their definitions."""

import math

import pytest
import torch
from torch import nn
from torchvision.models import resnet18, resnet50
from torchvision.models.resnet import BasicBlock, Bottleneck

from lightning_modules.layers.zero_init import zero_last_norms
from lightning_modules.modules.loss import score


@pytest.mark.parametrize(("make", "blocks"), [(resnet18, 8), (resnet50, 16)])
def test_every_residual_block_begins_as_its_shortcut(make, blocks):
    """relu(shortcut) exactly, with the last scale of all 16 blocks of a ResNet-50 at zero."""
    model = make()

    zero_last_norms(model)

    found = [block for block in model.modules() if isinstance(block, BasicBlock | Bottleneck)]
    assert len(found) == blocks
    for block in found:
        inputs = torch.randn(2, block.conv1.in_channels, 4, 4)
        shortcut = block.downsample(inputs) if block.downsample else inputs
        torch.testing.assert_close(block(inputs), shortcut.relu())
        norms = [layer.weight for layer in block.children() if isinstance(layer, nn.BatchNorm2d)]
        assert [norm.abs().max().item() for norm in norms] == [1.0] * (len(norms) - 1) + [0.0]


def test_a_model_without_residual_blocks_is_refused():
    with pytest.raises(ValueError, match=r"^zero_init_last_norm needs a model with residual"):
        zero_last_norms(nn.Sequential(nn.Linear(2, 2)))


def test_label_smoothing_spreads_the_target_over_all_classes():
    """Logits (log 3, 0, 0, 0), target 0, smoothing 0.2: -0.85 log(1/2) - 0.15 log(1/6)."""
    logits = torch.tensor([[math.log(3), 0.0, 0.0, 0.0]])

    loss, _ = score(nn.Identity(), logits, torch.tensor([0]), label_smoothing=0.2)

    assert loss.item() == pytest.approx(0.85 * math.log(2) + 0.15 * math.log(6))


class OwnLoss(nn.Module):
    def score(self, outputs, labels):
        return outputs.mean(), labels.sum()


def test_a_loss_of_the_models_own_is_not_smoothed():
    with pytest.raises(
        ValueError, match=r"^label_smoothing must be 0 with a model that has its own"
    ):
        score(OwnLoss(), torch.ones(1), torch.ones(1), label_smoothing=0.1)
