"""How many examples a batch has, in whatever form."""

from collections.abc import Mapping, Sequence
from typing import Any

from pytorch_lightning.utilities.data import extract_batch_size
from pytorch_lightning.utilities.exceptions import MisconfigurationException
from torch import Tensor


def examples_in(batch: Any, expected: int | None = None) -> int:
    """Examples of a micro-batch: the length of its tensors or lists, or its own count [examples].

    Args:
        batch: as a loader gives it.
        expected: returned if any part of the batch has this length, because of images of various
            sizes only the list has an entry for each example. But if several tensors all have the
            same, smaller length, that counts: examples were dropped, though not, say, their names.

    Raises:
        ValueError: if the batch does not show how many examples it has.
    """
    said = len(batch) if isinstance(batch, Tensor) else getattr(batch, "batch_size", None)
    if isinstance(said, int):  # such as a batch of graphs
        return said
    parts = parts_of(batch)
    if expected is not None and expected in map(len, filter(_has_length, parts)):
        of_tensors = [len(part) for part in parts if isinstance(part, Tensor) and part.ndim > 0]
        all_alike = len(of_tensors) > 1 and len(set(of_tensors)) == 1
        return min(expected, of_tensors[0]) if all_alike else expected
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


def parts_of(batch: Any) -> list[Any]:
    """What a batch is made of: its values, its items, or the attributes of an object."""
    if isinstance(batch, list | tuple):  # most are, and checking against an abstract class is slow
        return list(batch)
    if isinstance(batch, Mapping):
        return list(batch.values())
    if isinstance(batch, Sequence):
        return [] if isinstance(batch, str | bytes) else list(batch)
    return list(getattr(batch, "__dict__", {}).values())


def _has_length(part: Any) -> bool:
    """Whether a part of a batch has an entry for each example."""
    return part.ndim > 0 if isinstance(part, Tensor) else isinstance(part, list)
