"""Ordered sums of gradients are the plain ones up to rounding; other sums are refused."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from lightning_modules.data.batches import val_bounds
from lightning_modules.gradients.ordered_sum import OrderedSum
from lightning_modules.layers.batch_position import StepPosition
from lightning_modules.layers.ghost_batchnorm import fix_batchnorm_span, ghost_batchnorms
from sweeper.spec.batch import BatchSplit

SPLIT = BatchSplit(micro_batch=8, accumulation_steps=6, world_size=1)
PLAN = SimpleNamespace(split=lambda epoch: SPLIT, bn_span=4, rank=0)


def trained(*, steps: int, is_ordered: bool) -> nn.Module:
    """A model with the gradients of its last step, and the running statistics of all."""
    torch.manual_seed(0)
    position = StepPosition()
    plain = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh()).double()
    model = fix_batchnorm_span(plain, span=4, position=position)
    ordered = OrderedSum(PLAN, position)
    if is_ordered:
        wrapped = SimpleNamespace(model=DistributedDataParallel(model))
        ordered.on_train_start(SimpleNamespace(current_epoch=0, strategy=wrapped), model)
    for step in range(steps):
        model.zero_grad()
        for index, part in enumerate(torch.randn(48, 3).double().split(8)):
            place = {"step_start": 48 * step, "first_example": 48 * step + 8 * index}
            position.move(epoch=0, step=step, examples=8, **place)
            loss = model(part).square().mean()
            if is_ordered:
                loss.backward()
                ordered.on_after_backward(None, None)
            else:
                (loss / 6).backward()
    (norm,) = ghost_batchnorms(model)
    norm.merge_ranks(12 * steps)  # of nothing, where each step has done it
    return model


@pytest.mark.usefixtures("process_group")
def test_the_ordered_sum_is_the_mean_of_the_step_and_keeps_the_running_statistics():
    plain, ordered = (trained(steps=3, is_ordered=order) for order in (False, True))

    for ours, expected in zip(ordered.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, expected.grad, rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(ordered.state_dict(), plain.state_dict(), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(
    ("saved", "before"),
    [({"OrderedSum": {"micro_batch": 4}}, "micro_batch=4"), ({}, "reproducible=false")],
)
def test_a_run_does_not_go_on_with_another_sum(saved, before):
    ordered = OrderedSum(PLAN, StepPosition())
    ordered.on_load_checkpoint(None, None, {"callbacks": {"OrderedSum": ordered.state_dict()}})

    with pytest.raises(ValueError, match=rf"made with {before}, now micro_batch=8\. Resume with"):
        ordered.on_load_checkpoint(None, None, {"callbacks": saved})


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
@pytest.mark.parametrize("is_whole", [True, False])
def test_validation_shows_each_example_once_and_in_whole_micro_batches_if_asked(
    world_size, is_whole
):
    split = BatchSplit(micro_batch=8, accumulation_steps=1, world_size=world_size)

    shown = [
        bounds
        for rank in range(world_size)
        for bounds in val_bounds(29, split=split, rank=rank, in_whole_micro_batches=is_whole)
    ]

    assert [i for start, stop in shown for i in range(start, stop)] == [*range(29)]
    if is_whole:
        assert shown == [(0, 8), (8, 16), (16, 24), (24, 29)]
