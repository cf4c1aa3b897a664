"""Counts the items that a batch's loss is a mean over (tokens, boxes), on the CPU."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from sweeper.spec.import_path import import_callable

#: The label that PyTorch's losses ignore and Hugging Face's collators pad with.
_IGNORED = -100


def item_count(loss_items: str) -> Callable[[Any], float]:
    """The function that counts the items of a batch.

    Args:
        loss_items: the dotted path of a function of a batch, or a key of a batch that is a
            dictionary. If its name ends with `mask`, or its entries are booleans, non-zero entries
            are counted; of other integers, those that are not -100.

    Raises:
        ValueError: if the function cannot be import_callable.
    """
    if "." not in loss_items:
        return lambda batch: _without_padding(batch, loss_items)
    function = import_callable(loss_items, "loss_items")
    return lambda batch: _checked(function(batch), loss_items)


def _checked(count: Any, loss_items: str) -> float:
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


def _without_padding(batch: Any, key: str) -> int:
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
            return int((entries != _IGNORED).sum())
    msg = (
        "loss_items must be a key of labels as whole numbers, whose padding is -100, or of a mask; "
        f"got loss_items={key}, which holds {_kind(entries)}. Write the dotted path of a function "
        "that counts."
    )
    raise ValueError(msg)


def _kind(entries: Any) -> str:
    is_tensor = isinstance(entries, Tensor)
    return f"{entries.dtype} numbers" if is_tensor else f"a {type(entries).__name__}"
