"""A BatchNorm span over several ranks is that of one rank, forward and backward."""

import multiprocessing
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from lightning_modules.layers.batch_position import StepPosition
from lightning_modules.layers.ghost_batchnorm import fix_batchnorm_span, ghost_batchnorms
from lightning_modules.layers.sync_group import sync_group
from lightning_modules.rank_plan import micro_batch_indices
from sweeper.spec.batch import BatchSplit

SPAN, SPANS = 8, 4


def net() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Tanh(), nn.BatchNorm2d(3))
    nn.init.uniform_(layers[1].weight)
    return layers.double()


def inputs() -> torch.Tensor:
    return torch.randn(SPAN * SPANS, 1, 5, 5, generator=torch.Generator().manual_seed(1)).double()


def outcome(split: BatchSplit, rank: int) -> list[torch.Tensor]:
    """Gradients, summed over ranks, and running statistics after one step."""
    position = StepPosition()
    together = sync_group(split, bn_span=SPAN, rank=rank)
    model = fix_batchnorm_span(net(), span=SPAN, position=position, together=together)
    micro = split.micro_batch
    for place in micro_batch_indices(split, SPAN)[rank]:
        part = inputs()[place * micro : (place + 1) * micro]
        position.move(epoch=0, step=0, first_example=place * micro, examples=micro)
        weights = torch.arange(part.numel() // micro, dtype=torch.float64)[:9].view(3, 3)
        (model(part) ** 3 * weights).sum().backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    if split.world_size > 1:
        for gradient in gradients:
            dist.all_reduce(gradient)
    statistics = []
    for layer in ghost_batchnorms(model):
        layer.merge_ranks(SPANS)
        statistics += [layer.running_mean, layer.running_var]
    return [tensor.detach() for tensor in gradients + statistics]


def on_a_rank(pipe: Connection | None, folder: str, split: BatchSplit, rank: int) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/meeting", split.world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=split.world_size)
    found = outcome(split, rank)
    if pipe is not None:
        pipe.send([tensor.numpy() for tensor in found])
    dist.destroy_process_group()


@pytest.mark.parametrize(("world_size", "micro_batch"), [(4, 2), (4, 4)])
def test_ranks_together_have_the_gradients_and_statistics_of_one(
    tmp_path: Path, world_size, micro_batch
):
    whole = BatchSplit(micro_batch=SPAN * SPANS, accumulation_steps=1, world_size=1)
    steps = SPAN * SPANS // world_size // micro_batch
    split = BatchSplit(micro_batch=micro_batch, accumulation_steps=steps, world_size=world_size)
    context = multiprocessing.get_context("forkserver")
    receive, send = context.Pipe(duplex=False)
    ranks = [
        context.Process(
            target=on_a_rank, args=(send if rank == 0 else None, str(tmp_path), split, rank)
        )
        for rank in range(world_size)
    ]
    for rank in ranks:
        rank.start()
    found = receive.recv()
    for rank in ranks:
        rank.join()
    receive.close()
    send.close()

    for ours, expected in zip(found, outcome(whole, 0), strict=True):
        torch.testing.assert_close(torch.from_numpy(ours), expected, rtol=1e-12, atol=1e-12)


def test_a_span_of_one_is_torchs_own_batchnorm():
    """What `test_ranks_together...` compares with, against torch itself."""
    position = StepPosition()
    model = fix_batchnorm_span(net(), span=SPAN, position=position)
    position.move(epoch=0, step=0, first_example=0, examples=SPAN)
    x = inputs()[:SPAN]

    torch.testing.assert_close(model(x), net()(x), rtol=1e-12, atol=1e-12)


def test_ranks_of_a_span_work_on_neighbours_and_others_on_a_part_of_their_own():
    split = BatchSplit(micro_batch=2, accumulation_steps=3, world_size=4)

    assert micro_batch_indices(split, 4) == [
        range(0, 6, 2),
        range(1, 7, 2),
        range(6, 12, 2),
        range(7, 13, 2),
    ]
    assert micro_batch_indices(split, 2) == [range(i, i + 3) for i in (0, 3, 6, 9)]
