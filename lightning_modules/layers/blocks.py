"""Repeated blocks of a model: found, compiled, recomputed in the backward pass."""

from collections import Counter
from collections.abc import Collection
from functools import cache
from typing import Any, ClassVar

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from sweeper.upstream.torchs import allow_graphs

_MOST_GRAPHS = 64  # of a block, whose settings may differ between its repetitions


def find_blocks(module: nn.Module, names: Collection[str] = ()) -> list[nn.Module]:
    """The layers of named classes, inner ones first; ValueError if a class has none.

    Without names, the longest ModuleList or Sequential of layers of one class; empty if there is
    none.
    """
    classes = Counter(map(_name_class, module.modules()))
    if missing := [name for name in names if not classes[name]]:
        repeated = ", ".join(name for name, number in classes.most_common(8) if number > 1)
        msg = (
            f"fsdp_blocks must be classes of the module's layers; got {', '.join(missing)}. "
            f"Those that it has several of are {repeated or 'none'}."
        )
        raise ValueError(msg)
    if names:
        return [part for part in module.modules() if _name_class(part) in names][::-1]
    found: list[nn.Module] = []
    for parent in module.modules():
        children = (
            list(parent.children()) if isinstance(parent, nn.ModuleList | nn.Sequential) else []
        )
        is_repeated = len({type(child) for child in children}) == 1
        has_weights = all(any(True for _ in child.parameters()) for child in children)
        if is_repeated and has_weights and len(children) > max(1, len(found)):
            found = children
    return found


def _name_class(part: nn.Module) -> str:
    """The name of a layer's class, before a run made it one of its own."""
    return getattr(part, "plain_class", type(part)).__name__


def compile_blocks(module: nn.Module) -> None:
    """Compile each repeated block of several layers in place, or each child with parameters.

    Blocks of equal shapes share what is compiled; if they differ, or there are none, the children
    are compiled. Names of parameters stay as they are.
    """
    allow_graphs(_MOST_GRAPHS)
    blocks = [block for block in find_blocks(module) if any(True for _ in block.children())]
    shapes = {tuple((n, p.shape) for n, p in block.named_parameters()) for block in blocks}
    children = [child for child in module.children() if any(True for _ in child.parameters())]
    for part in blocks if len(shapes) == 1 else children:
        part.compile()


class Checkpointed(nn.Module):
    """A block whose activations are recomputed in the backward pass, a subclass of what it was.

    Source:
        Chen et al. 2016, arXiv:1604.06174.
    """

    plain_class: ClassVar[type[nn.Module]]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The block's outputs."""
        if not (self.training and torch.is_grad_enabled()):
            return super().forward(*args, **kwargs)
        # nothing draws from torch's generators: dropout is keyed
        again = super().forward
        return checkpoint(again, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Serialise the plain block."""
        del protocol
        return object.__new__, (self.plain_class,), self.__getstate__()


def checkpoint_blocks(model: nn.Module) -> None:
    """Have all blocks of the kind that is repeated recompute their activations, in place.

    ValueError if the model has none.
    """
    blocks = find_blocks(model)
    if not blocks:
        msg = (
            "checkpoint_activations=true needs a model with repeated blocks (a ModuleList or "
            f"Sequential of layers of one class); got {type(model).__name__}. Use another model, "
            "or remove checkpoint_activations."
        )
        raise ValueError(msg)
    kind = type(blocks[0])
    for block in [block for block in model.modules() if type(block) is kind]:
        block.__class__ = _make_checkpointed(kind)


@cache
def _make_checkpointed(kind: type[nn.Module]) -> type[nn.Module]:
    members = {"plain_class": kind, "__module__": Checkpointed.__module__}
    return type(f"Checkpointed_{kind.__name__}", (Checkpointed, kind), members)
