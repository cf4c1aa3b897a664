"""What tests run on several ranks, one process each."""

from multiprocessing.connection import Connection

import torch
import torch.distributed as dist

from lightning_modules.gradients.hierarchical import Hierarchy


def tell_mean(pipe: Connection, rank: int, world_size: int, meeting: str, on_node: int) -> None:
    """Tell two hierarchical means: of the rank and its square, then of its cube."""
    torch.set_num_threads(1)
    store = dist.FileStore(meeting, world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    hierarchy = Hierarchy(ranks_per_node=on_node)
    first = hierarchy.mean(torch.tensor([rank, rank**2]).double())
    second = hierarchy.mean(torch.tensor([rank**3]).double())
    pipe.send([*first.tolist(), *second.tolist()])
    dist.barrier()
    dist.destroy_process_group()
