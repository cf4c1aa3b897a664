"""The ranks of a run: how many there are, whether they exchange anything, what Lightning sees.

A run on a single rank has no process group, as under a plain Trainer: whatever would talk to other
ranks sees that there are none. gloo's thread would wake many times a second.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from sweeper.spec.config import AllReduce, CommHook
from sweeper.upstream.torchs import tree_map_only

_PLAIN = AllReduce(name="all_reduce", nccl_algo=None)


def has_exchange(comm_hook: CommHook, world_size: int, *, reproducible: bool) -> bool:
    """Whether gradients are exchanged: by several ranks, or through a hook."""
    return world_size > 1 or reproducible or comm_hook != _PLAIN


def num_ranks() -> int:
    """Ranks in the process group; 1 without a group [count]."""
    return dist.get_world_size() if dist.is_initialized() else 1


def check_world(world_size: int, seen_by_lightning: int) -> None:
    """Raise RuntimeError if the process group, or Lightning's view of it, is not the run's."""
    realised = num_ranks()
    if realised != world_size or seen_by_lightning != world_size:
        msg = (
            f"the number of ranks must be devices x num_nodes = {world_size}; got {realised} "
            f"(Lightning sees {seen_by_lightning}). Start a process per rank, and check the rank "
            "variables of the launcher."
        )
        raise RuntimeError(msg)


def open_store() -> dist.Store:
    """Connect to the store of torchrun's agents, as their environment variables say."""
    store, _, _ = next(rendezvous("env://"))
    return store


State = TypeVar("State")


def gather_states(state: State) -> list[State]:
    """Every rank's own state, by rank, on the CPU; all ranks take part."""
    own = tree_map_only(Tensor, lambda tensor: tensor.to("cpu", copy=True), state)
    states: list[Any] = [own] * num_ranks()
    if len(states) > 1:
        dist.all_gather_object(states, states[0])
    return states


def restore_state(states: Sequence[State], add: Callable[[Sequence[State], int], State]) -> State:
    """The state that this rank resumes with, from those of `gather_states`.

    On as many ranks as before, each gets its own. On another number, rank 0 gets the sum over all
    and the others get zero, so that sums over ranks stay the same.

    `states` are in rank order; `add` sums states, times 1 or 0.
    """
    rank = dist.get_rank() if num_ranks() > 1 else 0
    if len(states) == num_ranks():
        return states[rank]
    return add(states, 1 if rank == 0 else 0)


def all_reduce(tensor: Tensor) -> Tensor:
    """The sum over ranks, in place."""
    if num_ranks() > 1:
        dist.all_reduce(tensor)
    return tensor


def all_reduce_list(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The sums over ranks of each tensor, in a single exchange."""
    flat = all_reduce(torch.cat([tensor.reshape(-1) for tensor in tensors]))
    parts = flat.split([tensor.numel() for tensor in tensors])
    return [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]
