"""State of each rank, gathered for a checkpoint and distributed again."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch.distributed as dist
from torch import Tensor

State = TypeVar("State")


def gather_states(state: State) -> list[State]:
    """Every rank's own state, by rank, on the CPU; all ranks take part."""
    states: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(states, _on_cpu(state))
    return states


def own_state(states: Sequence[State], add: Callable[[Sequence[State], int], State]) -> State:
    """The state that this rank resumes with, from those of `gather_states`.

    On as many ranks as before each has its own. On another number rank 0 has the sum over all and
    the others have nothing, so that sums over ranks stay the same.

    `states` are by rank; `add` sums states, times 1 or 0.
    """
    rank = dist.get_rank()
    if len(states) == dist.get_world_size():
        return states[rank]
    return add(states, 1 if rank == 0 else 0)


def _on_cpu(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.cpu()
    if isinstance(value, dict):
        return {key: _on_cpu(item) for key, item in value.items()}
    return [_on_cpu(item) for item in value] if isinstance(value, list) else value


def all_reduce(tensor: Tensor) -> Tensor:
    """The sum over ranks, in place."""
    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.all_reduce(tensor)
    return tensor
