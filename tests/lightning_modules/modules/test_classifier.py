"""Our classifier: identity blocks and losses against their definitions; the Trainer's switches."""

import math

import pytest
import torch
from pytorch_lightning.profilers import SimpleProfiler
from torch import nn
from torchvision.models import resnet18, resnet50
from torchvision.models.resnet import BasicBlock, Bottleneck

from lightning_modules.modules.classifier import Classifier, score, zero_last_norms


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


def test_equal_logits_cost_the_logarithm_of_the_classes():
    loss, correct = score(nn.Identity(), torch.zeros(5, 8), torch.zeros(5, dtype=torch.int64))

    assert loss.item() == pytest.approx(math.log(8))
    assert correct.item() == 5  # of equal logits the first counts


def test_a_sequence_counts_as_one_example_that_may_be_partly_right():
    logits = 100 * nn.functional.one_hot(torch.tensor([[0, 1, 2, 3], [1, 1, 1, 1]])).float()
    labels = torch.tensor([[0, 1, 2, 0], [1, 1, 1, 1]])

    loss, correct = score(nn.Identity(), logits, labels)

    assert loss.item() == pytest.approx(100 / 8)
    assert correct.item() == pytest.approx(3 / 4 + 1)


def test_the_mean_over_micro_batches_is_the_mean_over_the_batch():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(12, 6, 9, generator=generator, dtype=torch.float64)
    labels = torch.randint(9, (12, 6), generator=generator)

    whole, _ = score(nn.Identity(), logits, labels)
    parts = [score(nn.Identity(), logits[i : i + 4], labels[i : i + 4])[0] for i in (0, 4, 8)]

    assert torch.stack(parts).mean().item() == pytest.approx(whole.item(), rel=1e-14)


class OwnLoss(nn.Module):
    def score(self, outputs, labels):
        return outputs.mean(), labels.sum()


def test_a_loss_of_the_models_own_is_taken_as_it_is_and_not_smoothed():
    loss, correct = score(OwnLoss(), torch.tensor([1.0, 3.0]), torch.tensor([2, 0]))

    assert (loss.item(), correct.item()) == (2.0, 2)
    with pytest.raises(
        ValueError, match=r"^label_smoothing must be 0 with a model that has its own"
    ):
        score(OwnLoss(), torch.ones(1), torch.ones(1), label_smoothing=0.1)


def test_a_profiler_that_is_asked_for_sees_every_micro_batch(run_words, monkeypatch):
    seen = []
    monkeypatch.setattr(SimpleProfiler, "start", lambda self, name: seen.append(name))
    monkeypatch.setattr(SimpleProfiler, "stop", lambda self, name: None)
    short = {"batch": 768, "micro_batch": 384, "warmup": 0, "epochs": 1, "schedule": "constant"}
    words = [f"{key}={value}" for key, value in short.items()]

    run_words(*words, "+trainer.profiler=simple", num_train_examples=1536)

    assert sum(name.endswith("Strategy.training_step") for name in seen) == 4


def test_inputs_and_labels_go_where_the_module_is():
    on_cpu = torch.zeros(2, 3), torch.zeros(2, dtype=torch.long)

    moved = Classifier(nn.Identity()).transfer_batch_to_device(on_cpu, torch.device("meta"), 0)

    assert [part.device.type for part in moved] == ["meta", "meta"]
