"""Tensors of which each rank holds a shard, and whole ones: the same for whoever asks."""

from typing import Any, TypeVar

from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor

from sweeper.upstream.torchs import tree_map_only

Tree = TypeVar("Tree")


def whole(tensor: Tensor) -> Tensor:
    """A tensor of which ranks may hold shards, whole on every rank; all ranks take part."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def to_save(tree: Tree) -> Tree:
    """Containers of tensors as rank 0 saves them: whole, in main memory; all ranks take part."""

    def gather(shards: DTensor) -> Tensor:
        gathered = shards.full_tensor()
        return gathered.cpu() if shards.device_mesh.get_rank() == 0 else shards

    return tree_map_only(DTensor, gather, tree)


def shard_like(model: Tensor, tensor: Any) -> Any:
    """A whole tensor as shards, as those of another of its shape; else what was given."""
    is_alike = isinstance(tensor, Tensor) and tensor.shape == model.shape
    if not (is_alike and isinstance(model, DTensor)) or isinstance(tensor, DTensor):
        return tensor
    return distribute_tensor(
        tensor.to(model.device), model.device_mesh, model.placements, src_data_rank=None
    )
