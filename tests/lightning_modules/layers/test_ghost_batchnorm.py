"""BatchNorm over a fixed span of examples: the statistics of torch's own, whatever the layout."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from lightning_modules.layers.ghost_batchnorm import fix_batchnorm_span, ghost_batchnorms
from lightning_modules.layers.position import StepPosition


def net(span: int) -> tuple[nn.Module, StepPosition]:
    torch.manual_seed(0)
    position = StepPosition()
    plain = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
    return fix_batchnorm_span(plain.double(), span=span, position=position), position


def images(num: int) -> torch.Tensor:
    return torch.randn(num, 1, 6, 6, generator=torch.Generator().manual_seed(1)).double()


def test_one_span_per_micro_batch_is_torchs_own_batchnorm():
    ours, position = net(span=8)
    torch.manual_seed(0)
    torchs = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten()).double()
    x = images(32)

    for index, part in enumerate(x.split(8)):
        position.first_example = 8 * index
        torch.testing.assert_close(ours(part), torchs(part), rtol=1e-12, atol=1e-12)
    (layer,) = ghost_batchnorms(ours)
    layer.merge_ranks(4)

    torch.testing.assert_close(layer.running_mean, torchs[1].running_mean, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(layer.running_var, torchs[1].running_var, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(ours.eval()(x), torchs.eval()(x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("micro_batch", [8, 16, 32])
def test_the_micro_batch_does_not_change_the_gradient(micro_batch):
    x = images(32)

    def gradient(micro: int) -> torch.Tensor:
        model, position = net(span=8)
        for index, part in enumerate(x.split(micro)):
            position.first_example = index * micro
            (model(part).square().sum() / 32).backward()
        return model[0].weight.grad

    torch.testing.assert_close(gradient(micro_batch), gradient(8), rtol=1e-12, atol=1e-14)


def test_plain_batchnorm_does_depend_on_the_micro_batch():
    """The trap that the span cures (batch statistics of each micro-batch)."""
    x, torchs = images(32), nn.BatchNorm2d(1).double()

    whole = torchs(x)
    parts = torch.cat([torchs(part) for part in x.split(8)])

    assert (whole - parts).abs().max() > 0.01


@pytest.mark.parametrize("world_size", [2, 4])
def test_running_statistics_of_ranks_add_up_to_those_of_one_process(world_size):
    """Two epochs of two steps; each rank sees its part of each step; the terms sum to one's."""
    steps, spans = 2, 8
    epochs = [images(steps * spans * 4).split(4) for _ in range(2)]
    alone, position = net(span=4)
    ranks = [net(span=4) for _ in range(world_size)]
    merged = [0.0, 0.0]

    for epoch in epochs:
        for index, span in enumerate(epoch):
            position.first_example = 4 * index
            alone(span)
        (layer,) = ghost_batchnorms(alone)
        layer.merge_ranks(steps * spans)
        share = spans // world_size
        keep = (1 - layer.momentum) ** (steps * spans)
        terms = torch.zeros_like(layer.running_mean)
        for rank, (model, place) in enumerate(ranks):
            for step in range(steps):
                for i in range(step * spans + rank * share, step * spans + (rank + 1) * share):
                    place.first_example = 4 * i
                    model(epoch[i])
            (part,) = ghost_batchnorms(model)
            before = part.running_mean.clone()
            part.merge_ranks(steps * spans)
            terms += part.running_mean - keep * before
        merged[0] = keep * merged[0] + terms

    torch.testing.assert_close(merged[0], layer.running_mean, rtol=1e-12, atol=1e-14)


def test_every_kind_of_batchnorm_in_a_torchvision_model_is_converted():
    from torchvision.models import resnet18

    model = fix_batchnorm_span(resnet18(num_classes=10), span=4, position=StepPosition())

    kinds = {type(layer).__name__ for layer in model.modules()}
    assert "BatchNorm2d" not in kinds
    assert len(list(ghost_batchnorms(model))) == 20
    assert functional.cross_entropy(model(torch.randn(8, 3, 32, 32)), torch.arange(8)).isfinite()
