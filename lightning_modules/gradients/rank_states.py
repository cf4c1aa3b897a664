"""State of each rank, gathered for a checkpoint and distributed again."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch.distributed as dist
from torch import Tensor

from lightning_modules.process.world import num_ranks

State = TypeVar("State")


def gather_states(state: State) -> list[State]:
    """Every rank's own state, by rank, on the CPU; all ranks take part."""
    states: list[Any] = [_on_cpu(state)] * num_ranks()
    if len(states) > 1:
        dist.all_gather_object(states, states[0])
    return states


def own_state(states: Sequence[State], add: Callable[[Sequence[State], int], State]) -> State:
    """The state that this rank resumes with, from those of `gather_states`.

    On as many ranks as before, each gets its own. On another number, rank 0 gets the sum over all
    and the others get zero, so that sums over ranks stay the same.

    `states` are in rank order; `add` sums states, times 1 or 0.
    """
    rank = dist.get_rank() if num_ranks() > 1 else 0
    if len(states) == num_ranks():
        return states[rank]
    return add(states, 1 if rank == 0 else 0)


def _on_cpu(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: _on_cpu(item) for key, item in value.items()}
    return [_on_cpu(item) for item in value] if isinstance(value, list) else value


def all_reduce(tensor: Tensor) -> Tensor:
    """The sum over ranks, in place."""
    if num_ranks() > 1:
        dist.all_reduce(tensor)
    return tensor
