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

from lightning_modules.data.examples import parts_of


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
        self._known = {id(one) for one in known}

    def persistent_id(self, obj: Any) -> str | None:
        """Leave out the content of known objects, and of what belongs to the Trainer."""
        is_known = id(obj) in self._known
        return "known" if is_known or isinstance(obj, _OF_TRAINER) else None

    def reducer_override(self, obj: Any) -> Any:
        """Tensors by their values, since they may be views of much larger ones."""
        if isinstance(obj, torch.Generator):
            return bytes, (obj.get_state().numpy().tobytes(),)
        if isinstance(obj, Tensor) and obj.layout is torch.strided:
            whole = obj.detach().cpu().clone(memory_format=torch.contiguous_format)
            values = whole.flatten().view(torch.uint8)
            return tuple, ((str(obj.dtype), tuple(obj.shape), values.numpy().tobytes()),)
        return NotImplemented


_OF_TRAINER = (pl.Trainer, Optimizer, LRScheduler)


def attributes(module: pl.LightningModule, skipped: type[nn.Module]) -> dict[str, bytes | None]:
    """Fingerprints of what a module and its layers keep outside of its state_dict.

    A weight that a hook derives from parameters, such as `weight` from `weight_orig`, is left out:
    it is computed again each time.

    Args:
        module: the user's.
        skipped: layers whose attributes are left out.
    """
    inside = [*module.modules(), *module.parameters(), *module.buffers()]
    plain = {*vars(pl.LightningModule())}  # those of Lightning's and torch's own
    saved = module.state_dict()
    unsaved = {name: fingerprint(one) for name, one in tensors_of(module) if name not in saved}
    return unsaved | {
        f"{name}.{key}" if name else key: fingerprint(value, inside)
        for name, layer in module.named_modules()
        if not isinstance(layer, skipped)
        for key, value in {**_of_class(layer), **vars(layer)}.items()
        if key not in plain and not _is_derived(layer, key, value)
    }


#: Packages whose classes keep no state.
_LIBRARIES = {
    "builtins", "lightning", "lightning_fabric", "pytorch_lightning", "torch", "torchmetrics",
    "torchvision",
}  # fmt: skip


def _of_class(layer: nn.Module) -> dict[str, Any]:
    """What the classes of a user's layer hold, such as a generator, without their methods."""
    return {
        key: value
        for kind in reversed(getattr(layer, "users_class", type(layer)).__mro__)
        if kind.__module__.partition(".")[0] not in _LIBRARIES
        for key, value in vars(kind).items()
        if not (key.startswith("__") or callable(value) or hasattr(value, "__get__"))
    }


def _is_derived(layer: nn.Module, key: str, value: Any) -> bool:
    names = (name for name, _ in layer.named_parameters(recurse=False))
    return isinstance(value, Tensor) and any(name.startswith(f"{key}_") for name in names)


def tensors_of(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers, by name."""
    yield from module.named_parameters()
    yield from module.named_buffers()


def copied(module: nn.Module) -> dict[str, Tensor]:
    """Copies of parameters and buffers, by name."""
    return {name: one.detach().clone() for name, one in tensors_of(module)}


def stirred(
    module: nn.Module, before: Mapping[str, Tensor], *, besides: tuple[type[nn.Module], ...]
) -> list[str]:
    """Names of floating-point parameters and buffers that have changed.

    Args:
        module: the module that has them.
        before: what `copied` returned.
        besides: kinds of layers whose buffers are left out.
    """
    layers = [layer for layer in module.modules() if isinstance(layer, besides)]
    known = {id(buffer) for layer in layers for buffer in layer.buffers()}
    return [
        name
        for name, one in tensors_of(module)
        if one.is_floating_point() and id(one) not in known
        if name in before and not torch.equal(one, before[name])
    ]


def example_in_both(many: Any, alone: Any, index: int, size: int) -> bool | None:
    """Whether an example is the same in a batch of many as in a batch of its own.

    Padding does not count. What has no entry for each example is not compared; None if nothing has.

    Args:
        many: batch of `size` examples.
        alone: batch of the example, of the same kind.
        index: of the example in the larger batch.
        size: examples of the larger batch [examples].
    """
    if isinstance(many, PackedSequence) and isinstance(alone, PackedSequence):
        many, alone = (pad_packed_sequence(one, batch_first=True) for one in (many, alone))
    if _has_entries(many, size) and _has_entries(alone, 1):
        return _same(many[index], alone[0])
    if isinstance(many, Mapping) and isinstance(alone, Mapping):
        pairs = [(many[key], alone[key]) for key in many if key in alone]
    else:
        pairs = list(zip(parts_of(many), parts_of(alone), strict=False))
    found = [example_in_both(*pair, index, size) for pair in pairs]
    known = [one for one in found if one is not None]
    return all(known) if known else None


def _has_entries(part: Any, size: int) -> bool:
    """Whether a part of a batch has an entry for each example."""
    is_batch = bool(part.ndim) if isinstance(part, Tensor) else _is_list(part)
    return is_batch and len(part) == size


def _is_list(part: Any) -> bool:
    return isinstance(part, Sequence) and not isinstance(part, str | bytes)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return _same_but_for_padding(one, other)
    return fingerprint(one) == fingerprint(other)


def _same_but_for_padding(one: Tensor, other: Tensor) -> bool:
    """Equal where both have values, aligned at their start or at their end."""
    if one.ndim != other.ndim:
        return False
    sizes = list(map(min, one.shape, other.shape))
    at_begin = tuple(slice(size) for size in sizes)
    return _equal(one[at_begin], other[at_begin]) or _equal(
        *(
            t[tuple(slice(n - size, n) for size, n in zip(sizes, t.shape, strict=True))]
            for t in (one, other)
        )
    )


def _equal(one: Tensor, other: Tensor) -> bool:
    """Equal, with NaN equal to NaN."""
    return fingerprint(one) == fingerprint(other)
