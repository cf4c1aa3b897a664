"""Whether two things are the same: an object then and now, an example in two batches."""

import io
import pickle
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from lightning_modules.data.batch_counts import list_parts


def fingerprint(thing: Any, known: Collection[Any] = ()) -> bytes | None:
    """Bytes that are the same for the same content; None if it cannot be pickled.

    Args:
        thing: anything that can be pickled.
        known: objects whose content does not count, by identity.
    """
    buffer = io.BytesIO()
    try:
        _Pickler(buffer, known).dump(thing)
    except Exception:  # noqa: BLE001  whatever an object of the user's does when it is pickled
        return None
    return buffer.getvalue()


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, known: Collection[Any]) -> None:
        super().__init__(file)
        self._known = set(map(id, known))

    def persistent_id(self, obj: Any) -> str | None:
        """Leave out the content of known objects, and of what belongs to the Trainer."""
        is_known = id(obj) in self._known
        return "known" if is_known or isinstance(obj, _TRAINER_PARTS) else None

    def reducer_override(self, obj: Any) -> Any:
        """Tensors by their values, since they may be views of much larger tensors."""
        if isinstance(obj, torch.Generator):
            return bytes, (obj.get_state().numpy().tobytes(),)
        if isinstance(obj, Tensor) and obj.layout is torch.strided:
            whole = obj.detach().cpu().clone(memory_format=torch.contiguous_format)
            values = whole.flatten().view(torch.uint8)
            return tuple, ((str(obj.dtype), tuple(obj.shape), values.numpy().tobytes()),)
        return NotImplemented


_TRAINER_PARTS = (pl.Trainer, Optimizer, LRScheduler)


def attributes(module: pl.LightningModule, skipped: type[nn.Module]) -> dict[str, bytes | None]:
    """Fingerprints of what a module and its layers keep outside of its state_dict.

    A weight that a hook derives from parameters, such as `weight` from `weight_orig`, is left out:
    it is computed again each time.
    """
    inside = [*module.modules(), *module.parameters(), *module.buffers()]
    plain = {*vars(pl.LightningModule())}  # those of Lightning's and torch's own
    saved = module.state_dict()
    unsaved = {name: fingerprint(t) for name, t in named_tensors(module) if name not in saved}
    return unsaved | {
        f"{name}.{key}" if name else key: fingerprint(value, inside)
        for name, layer in module.named_modules()
        if not isinstance(layer, skipped)
        for key, value in {**_class_attributes(layer), **vars(layer)}.items()
        if key not in plain
        and not (
            isinstance(value, Tensor)
            and any(name.startswith(f"{key}_") for name, _ in layer.named_parameters(recurse=False))
        )
    }


#: Packages whose classes keep no state.
_LIBRARIES = {
    "builtins", "lightning", "lightning_fabric", "pytorch_lightning", "torch", "torchmetrics",
    "torchvision",
}  # fmt: skip


def _class_attributes(layer: nn.Module) -> dict[str, Any]:
    """What the classes of a user's layer hold, such as a generator, without their methods."""
    return {
        key: value
        for kind in reversed(getattr(layer, "users_class", type(layer)).__mro__)
        if kind.__module__.partition(".")[0] not in _LIBRARIES
        for key, value in vars(kind).items()
        if not (key.startswith("__") or callable(value) or hasattr(value, "__get__"))
    }


def named_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers, by name."""
    yield from module.named_parameters()
    yield from module.named_buffers()


def clone_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Copies of parameters and buffers, by name."""
    return {name: tensor.detach().clone() for name, tensor in named_tensors(module)}


def changed_tensors(
    module: nn.Module, before: Mapping[str, Tensor], *, besides: tuple[type[nn.Module], ...]
) -> list[str]:
    """Names of floating-point parameters and buffers that have changed.

    Args:
        module: the module that has them.
        before: what `clone_tensors` returned.
        besides: kinds of layers whose buffers are left out.
    """
    layers = [layer for layer in module.modules() if isinstance(layer, besides)]
    known = {id(buffer) for layer in layers for buffer in layer.buffers()}
    return [
        name
        for name, tensor in named_tensors(module)
        if tensor.is_floating_point() and id(tensor) not in known
        if name in before and not torch.equal(tensor, before[name])
    ]


def is_same_example(many: Any, alone: Any, index: int, size: int) -> bool | None:
    """Whether an example is the same in a batch of many as in a batch of its own.

    Padding does not count. What has no entry for each example is not compared; None if nothing has.

    Args:
        many: batch of `size` examples.
        alone: batch of the example, of the same kind.
        index: of the example in the larger batch.
        size: examples of the larger batch [examples].
    """
    if isinstance(many, PackedSequence) and isinstance(alone, PackedSequence):
        many, alone = (pad_packed_sequence(x, batch_first=True) for x in (many, alone))
    if _has_entries(many, size) and _has_entries(alone, 1):
        return _is_same(many[index], alone[0])
    if isinstance(many, Mapping) and isinstance(alone, Mapping):
        pairs = [(many[key], alone[key]) for key in many if key in alone]
    else:
        pairs = list(zip(list_parts(many), list_parts(alone), strict=False))
    found = [is_same_example(*pair, index, size) for pair in pairs]
    known = [is_same for is_same in found if is_same is not None]
    return all(known) if known else None


def _has_entries(part: Any, size: int) -> bool:
    """Whether a part of a batch has an entry for each example."""
    if isinstance(part, Tensor):
        return part.ndim > 0 and len(part) == size
    return isinstance(part, Sequence) and not isinstance(part, str | bytes) and len(part) == size


def _is_same(a: Any, b: Any) -> bool:
    """Equal, with NaN equal to NaN; of tensors, where both have values, aligned at either end."""
    if not (isinstance(a, Tensor) and isinstance(b, Tensor)):
        return fingerprint(a) == fingerprint(b)
    if a.ndim != b.ndim:
        return False
    sizes = list(map(min, a.shape, b.shape))
    at_begin = tuple(slice(size) for size in sizes)
    ends = [
        tensor[tuple(slice(n - size, n) for size, n in zip(sizes, tensor.shape, strict=True))]
        for tensor in (a, b)
    ]
    return fingerprint(a[at_begin]) == fingerprint(b[at_begin]) or (
        fingerprint(ends[0]) == fingerprint(ends[1])
    )
