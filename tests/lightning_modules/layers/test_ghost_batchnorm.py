"""BatchNorm over a fixed span of examples: the statistics of torch's own, whatever the layout."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from lightning_modules.layers.batch_position import StepPosition
from lightning_modules.layers.ghost_batchnorm import (
    fix_batchnorm_span,
    ghost_batchnorms,
)


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
        position.move(epoch=0, step=0, first_example=8 * index, examples=8)
        torch.testing.assert_close(ours(part), torchs(part), rtol=1e-12, atol=1e-12)
    (layer,) = ghost_batchnorms(ours)
    layer.merge_ranks(4)

    torch.testing.assert_close(layer.running_mean, torchs[1].running_mean, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(layer.running_var, torchs[1].running_var, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(ours.eval()(x), torchs.eval()(x), rtol=1e-12, atol=1e-12)


def test_a_loop_may_say_no_more_than_the_first_example():
    by_hand, position = net(span=8)
    moved, full_position = net(span=8)
    for first, part in zip(range(0, 32, 8), images(32).split(8), strict=True):
        position.first_example = first
        full_position.move(epoch=0, step=0, first_example=first, examples=8)
        torch.testing.assert_close(by_hand(part), moved(part), rtol=0, atol=0)
    for layer in (*ghost_batchnorms(by_hand), *ghost_batchnorms(moved)):
        layer.merge_ranks(4)

    torch.testing.assert_close(by_hand[1].running_var, moved[1].running_var, rtol=0, atol=0)


@pytest.mark.parametrize("micro_batch", [8, 16, 32])
def test_the_micro_batch_does_not_change_the_gradient(micro_batch):
    x = images(32)

    def gradient(micro: int) -> torch.Tensor:
        model, position = net(span=8)
        for index, part in enumerate(x.split(micro)):
            position.move(epoch=0, step=0, first_example=index * micro, examples=micro)
            (model(part).square().sum() / 32).backward()
        return model[0].weight.grad

    torch.testing.assert_close(gradient(micro_batch), gradient(8), rtol=1e-12, atol=1e-14)


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
            position.move(epoch=0, step=0, first_example=4 * index, examples=4)
            alone(span)
        (layer,) = ghost_batchnorms(alone)
        layer.merge_ranks(steps * spans)
        share = spans // world_size
        keep = (1 - layer.momentum) ** (steps * spans)
        terms = torch.zeros_like(layer.running_mean)
        for rank, (model, place) in enumerate(ranks):
            for step in range(steps):
                for i in range(step * spans + rank * share, step * spans + (rank + 1) * share):
                    place.move(epoch=0, step=step, first_example=4 * i, examples=4)
                    model(epoch[i])
            (part,) = ghost_batchnorms(model)
            before = part.running_mean.clone()
            part.merge_ranks(steps * spans)
            terms += part.running_mean - keep * before
        merged[0] = keep * merged[0] + terms

    torch.testing.assert_close(merged[0], layer.running_mean, rtol=1e-12, atol=1e-14)


def test_every_kind_of_batchnorm_in_a_torchvision_model_is_converted():
    from torchvision.models import resnet18

    position = StepPosition()
    model = fix_batchnorm_span(resnet18(num_classes=10), span=4, position=position)
    position.move(epoch=0, step=0, first_example=0, examples=8)

    kinds = {type(layer).__name__ for layer in model.modules()}
    assert "BatchNorm2d" not in kinds
    assert len(list(ghost_batchnorms(model))) == 20
    assert functional.cross_entropy(model(torch.randn(8, 3, 32, 32)), torch.arange(8)).isfinite()


def tracked(layers: nn.Module, batches: list[torch.Tensor], forward) -> tuple[nn.Module, nn.Module]:
    """The ghost BatchNorm of layers after an epoch of passes, and torch's after the same."""
    torchs, position = copy.deepcopy(layers), StepPosition()
    ours = fix_batchnorm_span(layers, span=4, position=position)
    for index, x in enumerate(batches):
        position.move(epoch=0, step=0, first_example=4 * index, examples=4)
        forward(ours, x).sum().backward()
        torchs(x)
    (layer,) = ghost_batchnorms(ours)
    layer.merge_ranks(len(batches))
    return layer, next(m for m in torchs.modules() if isinstance(m, nn.BatchNorm2d))


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_pass_that_activation_checkpointing_repeats_is_counted_once(reentrant):
    """Twice as large means, and a third of the accuracy, without it."""
    layers = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)).double()
    batches = [x.requires_grad_() for x in images(12).split(4)]

    ours, torchs = tracked(
        layers, batches, lambda net, x: checkpoint(net, x, use_reentrant=reentrant)
    )

    torch.testing.assert_close(ours.running_mean, torchs.running_mean)
    torch.testing.assert_close(ours.running_var, torchs.running_var)


class _Calls(nn.Module):
    """A BatchNorm that a test calls in its own way."""

    def __init__(self, forward):
        super().__init__()
        self.norm, self.again = nn.BatchNorm2d(1), None
        self.how = forward

    def forward(self, x):
        return self.how(self, x)


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        (
            lambda net, x: net.norm(x.reshape(-1, 1, 3, 3)),
            r"as a row of its own; got shape \(16, 1, 3, 3\) for 4 examples",
        ),
        (lambda net, x: net.norm(net.norm(x)), "once; it was called again in the same pass"),
        (lambda net, x: net.norm(net.again(x)), "once; it was called again in the same pass"),
        (
            lambda net, x: x if net.norm.state.position.moves == 2 else net.norm(x),
            "in every training pass of an epoch; a pass left it out",
        ),
        (
            lambda net, x: x if net.norm.state.position.moves > 2 else net.norm(x),
            "in every training pass of an epoch; a pass left it out",
        ),
    ],
    ids=["folded", "twice", "two names", "left out", "left out at the end"],
)
def test_statistics_that_would_be_of_something_else_are_refused(how, sentence):
    net, position = _Calls(how).double(), StepPosition()
    net.again = net.norm
    fix_batchnorm_span(net, span=4, position=position)

    with pytest.raises(ValueError, match=sentence):  # noqa: PT012
        for index, x in enumerate(images(12).split(4)):
            position.move(epoch=0, step=index, first_example=4 * index, examples=4)
            net(x)
        net.norm.merge_ranks(3)


def test_a_span_of_one_value_for_each_channel_is_refused():
    layer = fix_batchnorm_span(nn.BatchNorm1d(3), span=1, position=StepPosition())
    layer.state.position.move(epoch=0, step=0, first_example=0, examples=4)

    with pytest.raises(ValueError, match="together with others; got a single value per channel"):
        layer(torch.randn(4, 3))
    layer(torch.randn(4, 3, 2))


class _Doubled(nn.BatchNorm2d):
    def forward(self, x):
        return 2 * super().forward(x)


class _Named(nn.BatchNorm2d):
    pass


@pytest.mark.parametrize(
    ("layer", "wrong"),
    [
        (_Doubled(4), "torch's own"),
        (nn.LazyBatchNorm2d(), "made with its number of channels"),
        (nn.BatchNorm2d(4, momentum=None), "a layer with a momentum and running statistics"),
        (nn.BatchNorm2d(4, track_running_stats=False), "a layer with a momentum and running"),
    ],
    ids=["subclass", "lazy", "no momentum", "no statistics"],
)
def test_a_batchnorm_of_another_kind_is_refused(layer, wrong):
    with pytest.raises(ValueError, match=f"a BatchNorm must be {wrong}"):
        fix_batchnorm_span(nn.Sequential(layer), span=4, position=StepPosition())


def test_a_subclass_that_normalises_as_torch_does_is_converted():
    model = fix_batchnorm_span(nn.Sequential(_Named(4)), span=4, position=StepPosition())

    assert len(list(ghost_batchnorms(model))) == 1


def test_a_trained_model_is_loaded_by_the_plain_one():
    """timm's layers hold an activation too."""
    timm = pytest.importorskip("timm")
    plain, position = timm.create_model("efficientnet_b0", num_classes=3), StepPosition()
    ours = fix_batchnorm_span(copy.deepcopy(plain), span=2, position=position)
    position.move(epoch=0, step=0, first_example=0, examples=4)
    ours(torch.randn(4, 3, 32, 32))
    for layer in ghost_batchnorms(ours):
        layer.merge_ranks(2)

    plain.load_state_dict(ours.state_dict(), strict=True)

    x = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(plain.eval()(x), ours.eval()(x), rtol=0, atol=0)
    assert int(plain.bn1.num_batches_tracked) == 2
