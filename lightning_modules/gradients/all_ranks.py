"""What each rank keeps for itself, gathered for the checkpoint."""

from typing import Any

import torch.distributed as dist
from torch import Tensor


def states_of_all_ranks(state: dict[Any, Any]) -> list[dict[Any, Any]]:
    """What every rank keeps for itself, by rank, on the CPU; all ranks take part."""
    states: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(states, _on_cpu(state))
    return states


def _on_cpu(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.cpu()
    if isinstance(value, dict):
        return {key: _on_cpu(item) for key, item in value.items()}
    return [_on_cpu(item) for item in value] if isinstance(value, list) else value
