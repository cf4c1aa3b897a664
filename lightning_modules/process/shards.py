"""Tensors of which each rank holds a shard, and whole ones: the same for whoever asks."""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils.hooks import RemovableHandle

from sweeper.upstream.torchs import tree_map_only

Tree = TypeVar("Tree")


def whole(tensor: Tensor) -> Tensor:
    """A tensor of which ranks may hold shards, whole on every rank; all ranks take part."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def shard(tensor: Tensor) -> Tensor:
    """This rank's shard of a tensor, or all of it if it has no shards."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


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


def list_sharded(module: nn.Module) -> dict[str, Any]:
    """The parts of a module that are sharded each by itself, by name; empty if nothing is."""
    return {name: part for name, part in module.named_modules() if isinstance(part, FSDPModule)}


def check_unsharded(module: nn.Module) -> None:
    """ValueError if a module shards parts of itself."""
    if (own := list_sharded(module)) or any(isinstance(p, DTensor) for p in module.parameters()):
        msg = (
            "a module must not shard itself: strategy=fsdp does, for every layout alike; got "
            f"fully_shard of {', '.join(own) or 'its parameters'}. Remove it, and add "
            "strategy=fsdp devices=2 or more; fsdp_blocks=[Class] names the layers."
        )
        raise ValueError(msg)


def call_with_leaves(module: nn.Module, call: Callable[[nn.Parameter, nn.Parameter], None]) -> None:
    """Call a function with each trained parameter, and the leaf that its gradients are of.

    That is the parameter itself; of one in shards the whole one, once it is gathered for the first
    time.
    """
    named = module.named_parameters(remove_duplicate=False)
    trained = {name: p for name, p in named if p.requires_grad}
    called = set[nn.Parameter]()

    def call_with_gathered(prefix: str, gathered: nn.Module) -> None:
        for name, leaf in gathered.named_parameters(prefix):
            if name in trained and leaf not in called and not isinstance(leaf, DTensor):
                called.add(leaf)
                call(trained[name], leaf)

    def call_once(prefix: str, handles: list[RemovableHandle], part: nn.Module, _: Any) -> None:
        call_with_gathered(prefix, part)
        handles.pop().remove()

    call_with_gathered("", module)
    for prefix, part in list_sharded(module).items():
        handles = list[RemovableHandle]()
        handles.append(part.register_forward_pre_hook(partial(call_once, prefix, handles)))
