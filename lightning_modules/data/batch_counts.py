"""How many examples a batch has, in whatever form, and how many items its loss is a mean over."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from pytorch_lightning.utilities.data import extract_batch_size
from pytorch_lightning.utilities.exceptions import MisconfigurationException
from torch import Tensor

from sweeper.spec.import_path import import_callable


def count_examples(batch: Any, expected: int | None = None) -> int:
    """Examples of a micro-batch: the length of its tensors or lists, or its own count [examples].

    Args:
        batch: as a loader gives it.
        expected: returned if any part of the batch has this length, because of images of various
            sizes only the list has an entry for each example. But if several tensors all have the
            same, smaller length, that counts: examples were dropped, though not, say, their names.

    Raises:
        ValueError: if the batch does not show how many examples it has.
    """
    size = len(batch) if isinstance(batch, Tensor) else getattr(batch, "batch_size", None)
    if isinstance(size, int):  # such as a batch of graphs
        return size
    parts = list_parts(batch)
    if expected is not None and expected in map(len, filter(_has_length, parts)):
        lengths = [len(part) for part in parts if isinstance(part, Tensor) and part.ndim > 0]
        all_alike = len(lengths) > 1 and len(set(lengths)) == 1
        return min(expected, lengths[0]) if all_alike else expected
    if isinstance(batch, list) and not any(map(_has_length, parts)):
        return len(batch)  # a list of uncollated examples
    try:
        return extract_batch_size(parts)
    except MisconfigurationException as error:
        msg = (
            "a batch must show its examples, by a tensor or list with an entry for each or by its "
            f'number "batch_size"; got a {type(batch).__name__} with neither. Give it one of them.'
        )
        raise ValueError(msg) from error


def list_parts(batch: Any) -> list[Any]:
    """What a batch is made of: its values, its items, or the attributes of an object."""
    if isinstance(batch, list | tuple):  # most are, and checking against an abstract class is slow
        return list(batch)
    if isinstance(batch, Mapping):
        return list(batch.values())
    if isinstance(batch, Sequence):
        return [] if isinstance(batch, str | bytes) else list(batch)
    if is_dataclass(batch):  # it may have slots
        return [getattr(batch, field.name) for field in fields(batch)]
    return list(getattr(batch, "__dict__", {}).values())


def _has_length(part: Any) -> bool:
    """Whether a part of a batch has an entry for each example."""
    return part.ndim > 0 if isinstance(part, Tensor) else isinstance(part, list)


#: The label that PyTorch's losses ignore and Hugging Face's collators pad with.
IGNORED = -100


def item_count(loss_items: str) -> Callable[[Any], float]:
    """The function that counts the items of a batch.

    Args:
        loss_items: the dotted path of a function of a batch, or a key of a batch that is a
            dictionary. If its name ends with `mask`, or its entries are booleans, non-zero entries
            are counted; of other integers, those that are not -100.

    Raises:
        ValueError: if the function cannot be imported.
    """
    if "." not in loss_items:
        return lambda batch: _count_unpadded(batch, loss_items)
    function = import_callable(loss_items, "loss_items")
    return lambda batch: _check_count(function(batch), loss_items)


def _check_count(count: Any, loss_items: str) -> float:
    try:
        number = float(count)
    except (TypeError, ValueError, RuntimeError):
        number = math.nan
    if not 0 <= number < math.inf:
        msg = (
            "loss_items must be a function that returns the number of items of a batch, 0 or more; "
            f"got loss_items={loss_items}, which returned {count!r}. Correct it."
        )
        raise ValueError(msg)
    return number


def _count_unpadded(batch: Any, key: str) -> int:
    if not isinstance(batch, Mapping) or key not in batch:
        has = f"keys {', '.join(map(str, batch))}" if isinstance(batch, Mapping) else "no keys"
        msg = (
            "loss_items must be a key of the batch or the dotted path of a function of it; got "
            f"loss_items={key}, the batch is a {type(batch).__name__} with {has}. Write one of "
            "them, or package.function."
        )
        raise ValueError(msg)
    entries: Any = batch[key]
    is_mask = key.endswith("mask")
    if isinstance(entries, Tensor):
        if is_mask or entries.dtype == torch.bool:
            return int(entries.count_nonzero())
        if not entries.is_floating_point():
            return int((entries != IGNORED).sum())
    kind = f"a {type(entries).__name__}"
    if isinstance(entries, Tensor):
        kind = f"{entries.dtype} numbers"
    msg = (
        "loss_items must be a key of labels as whole numbers, whose padding is -100, or of a mask; "
        f"got loss_items={key}, which holds {kind}. Write the dotted path of a function that "
        "counts."
    )
    raise ValueError(msg)
