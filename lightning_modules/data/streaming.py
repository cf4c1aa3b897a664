"""Examples prepared by worker processes in the requested order, for data too large for memory."""

import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

Batch = tuple[Tensor, Tensor]
_Part = tuple[str, int, int, Sequence[int]]  # split, seed, epoch, examples

_PART = 32  # examples that a worker makes at a time


class Make(Protocol):
    """Makes examples; a pure function, called in worker processes."""

    def __call__(self, split: str, seed: int, epoch: int, examples: Sequence[int]) -> Batch:
        """Inputs and labels of these examples of a split, as they are in an epoch."""
        ...


class Stream:
    """Batches from worker processes: ordered, pinned for a GPU and made ahead of their use.

    A batch's contents depend only on the requested examples, so the number of workers changes
    nothing but speed. A batch is made in parts, by several workers at a time.

    With `num_workers` 0 the examples are made in this process; otherwise `make` is sent to the
    workers.
    """

    def __init__(self, make: Make, *, num_workers: int, device: torch.device) -> None:
        self._requests = _Requests()
        self._device = device
        on_gpu = device.type == "cuda"
        self._loader: DataLoader[Batch] = DataLoader(
            _Parts(make),
            batch_size=None,  # the parts are batches already
            sampler=self._requests,
            num_workers=num_workers,
            persistent_workers=num_workers > 0,
            prefetch_factor=4 if num_workers else None,
            pin_memory=on_gpu,
        )

    def batches(
        self, split: str, seed: int, epoch: int, asked: Iterable[Sequence[int]]
    ) -> Iterator[Batch]:
        """The batches of these examples, in this order, on the device."""
        num_parts = deque[int]()

        def parts() -> Iterator[_Part]:
            for examples in asked:
                num_parts.append(-(-len(examples) // _PART))
                for first in range(0, len(examples), _PART):
                    yield split, seed, epoch, examples[first : first + _PART]

        self._requests.parts = parts()
        ready: list[Batch] = []
        for part in self._loader:
            inputs, labels = (tensor.to(self._device, non_blocking=True) for tensor in part)
            ready.append((inputs, labels))
            if len(ready) == num_parts[0]:
                num_parts.popleft()
                yield torch.cat([x for x, _ in ready]), torch.cat([y for _, y in ready])
                ready = []


def workers_for(stated: int | str, *, ranks_on_node: int, device: torch.device) -> int:
    """Worker processes of a rank [count].

    `auto` divides this machine's cores among its ranks; where the ranks train on these cores too,
    it is 1 fewer, but at least 1.

    Raises:
        ValueError: if stated is neither auto nor a number, 0 or more.
    """
    if stated == "auto":
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        share = (cores or 1) // ranks_on_node
        return max(1, share if device.type == "cuda" else share - 1)
    if not isinstance(stated, int) or stated < 0:
        msg = f"data.num_workers must be auto or a number, 0 or more; got {stated!r}."
        raise ValueError(msg)
    return stated


class _Requests(Sampler[_Part]):
    """The next requests to the workers; read ahead of use."""

    def __init__(self) -> None:
        self.parts: Iterator[_Part] = iter(())

    def __iter__(self) -> Iterator[_Part]:
        return self.parts


class _Parts(Dataset[Batch]):
    """The data set that workers see: a part of a batch for each request."""

    def __init__(self, make: Make) -> None:
        self._make = make

    def __getitem__(self, index: _Part) -> Batch:
        return self._make(*index)
