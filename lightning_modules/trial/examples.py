"""Whether an example is the same in two batches."""

import io
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

from lightning_modules.data.batch_counts import list_parts


def is_same_example(
    many: Any, few: Any, places: tuple[int, int], sizes: tuple[int, int]
) -> bool | None:
    """Whether an example is the same in two batches.

    Padding does not count. What has no entry for each example is not compared; None if nothing has.

    Args:
        many: a batch.
        few: another of the same kind.
        places: of the example in each.
        sizes: of each [examples].
    """
    if isinstance(many, PackedSequence) and isinstance(few, PackedSequence):
        many, few = (pad_packed_sequence(x, batch_first=True) for x in (many, few))
    if _has_entries(many, sizes[0]) and _has_entries(few, sizes[1]):
        return _is_same(many[places[0]], few[places[1]])
    if isinstance(many, Mapping) and isinstance(few, Mapping):
        pairs = [(many[key], few[key]) for key in many if key in few]
    else:
        pairs = list(zip(list_parts(many), list_parts(few), strict=False))
    found = [is_same_example(*pair, places, sizes) for pair in pairs]
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


def fingerprint(thing: Any) -> bytes | None:
    """Bytes that are the same for the same content; None if it cannot be pickled."""
    buffer = io.BytesIO()
    try:
        _Pickler(buffer).dump(thing)
    except Exception:  # noqa: BLE001  whatever an object of the user's does when it is pickled
        return None
    return buffer.getvalue()


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        """Tensors by their values, since they may be views of much larger tensors."""
        if isinstance(obj, torch.Generator):
            return bytes, (obj.get_state().numpy().tobytes(),)
        if isinstance(obj, Tensor) and obj.layout is torch.strided:
            whole = obj.detach().cpu().clone(memory_format=torch.contiguous_format)
            values = whole.flatten().view(torch.uint8)
            return tuple, ((str(obj.dtype), tuple(obj.shape), values.numpy().tobytes()),)
        return NotImplemented
