"""The ranks of a run: how many there are, whether they exchange anything, what Lightning sees.

A run on one rank has no process group, as under a plain Trainer on one device: whatever would talk
to other ranks sees that there are none. gloo's thread would wake many times a second.
"""

import pytorch_lightning as pl
import torch.distributed as dist

from sweeper.spec.config import AllReduce, CommHook

_PLAIN = AllReduce(name="all_reduce", nccl_algo=None)


def has_exchange(comm_hook: CommHook, world_size: int, *, reproducible: bool) -> bool:
    """Whether gradients are exchanged: by several ranks, or by a single one through a hook."""
    return world_size > 1 or reproducible or comm_hook != _PLAIN


def num_ranks() -> int:
    """Ranks in the process group; 1 without one [count]."""
    return dist.get_world_size() if dist.is_initialized() else 1


def check_world(world_size: int) -> None:
    """Raise RuntimeError if the process group is not that of the run's ranks."""
    realised = num_ranks()
    if realised != world_size:
        msg = (
            f"the number of ranks must be devices x num_nodes = {world_size}; "
            f"got {realised}. Start one process per rank."
        )
        raise RuntimeError(msg)


def check_trainer(trainer: pl.Trainer, world_size: int) -> None:
    """Raise RuntimeError if Lightning sees other ranks than the run's."""
    if trainer.world_size != world_size:
        msg = (
            f"Lightning's world_size must be {world_size}; got {trainer.world_size}. "
            "Check the rank variables of the launcher."
        )
        raise RuntimeError(msg)
