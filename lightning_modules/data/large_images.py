"""Large images, such as ImageNet: decoded and augmented by worker processes as they are needed."""

import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from lightning_modules.data.augment import (
    RESIZED_CROP_DRAWS,
    central_crop,
    decode_image,
    random_resized_crop,
)
from lightning_modules.data.batches import Requests
from lightning_modules.data.image_files import (
    FolderImages,
    ParquetImages,
    check_all_classes,
    check_count,
    open_images,
)
from lightning_modules.data.randomness import example_uniforms
from lightning_modules.process.device import copy_async
from sweeper.spec.values import Count

Batch = tuple[Tensor, Tensor]
_Part = tuple[str, int, int, Sequence[int]]  # split, seed, epoch, examples
_PART = 32  # examples that a worker makes at a time


class LargeImages:
    """A data set of images of any size, from folders of classes or from parquet.

    Training images are random parts, resized and half of them mirrored, by draws that are functions
    of (seed, epoch, example); validation images are central parts. Shapes: images
    (n, 3, size, size), labels (n,).

    Workers send parts of batches as uint8 pixels, in order and ahead of their use; these are
    normalised on the device that trains. A batch depends only on the requested examples, so the
    number of workers changes nothing but speed.

    The name is part of a run's identity, the folder is not; `source` is folder
    (``train/class/*.jpeg``, ``val/class/*.jpeg``) or parquet; `num_workers` is the number of
    decoding processes per rank, or auto; `resize` is the shorter side of a validation image before
    its centre is taken [pixels]. `augment` is crop for training images that are not mirrored, and
    none for those that are taken as in validation. `val_fraction` is the part of the images that is
    for validation, where the root holds ``class/*.jpeg`` alone.

    Raises:
        ValueError: if the files are missing or are not what the settings say.
    """

    def __init__(  # noqa: PLR0913  the keys of its config file
        self,
        *,
        name: str,
        root: str,
        source: str,
        num_workers: int | str,
        size: Count,
        resize: Count,
        num_classes: Count,
        num_train_examples: int,
        num_val_examples: int,
        augment: Literal["crop", "none"] | None = None,
        val_fraction: float | None = None,
    ) -> None:
        del name
        self.input_shape = (3, size, size)
        self.num_classes = num_classes
        self.num_train_examples, self.num_val_examples = num_train_examples, num_val_examples
        self._num_workers = num_workers
        train, val = (
            open_images(Path(root), source, split, num_classes, val_fraction)
            for split in ("train", "val")
        )
        check_count("num_train_examples", num_train_examples, len(train.labels), root)
        check_count("num_val_examples", num_val_examples, len(val.labels), root)
        check_all_classes(train.labels, num_classes=num_classes, where=root)
        self._views = _Views(
            {"train": train, "val": val}, size=size, resize=resize, augment=augment
        )
        self._seed, self._epoch = 0, 0
        self._requests = Requests()
        self._loader: DataLoader[Batch] | None = None
        self._device = torch.device("cpu")

    def settle(self, device: torch.device, *, ranks_on_node: int) -> None:
        """Start the workers that this rank gets, for the device that trains."""
        num = worker_count(self._num_workers, ranks_on_node=ranks_on_node, device=device)
        self._device = device
        self._loader = DataLoader(
            self._views,
            batch_size=None,  # the parts are batches already
            sampler=self._requests,
            num_workers=num,
            persistent_workers=num > 0,
            prefetch_factor=4 if num else None,
            pin_memory=device.type == "cuda",
        )

    def set_epoch(self, seed: int, epoch: int) -> None:
        """Choose the augmentation of a 0-based epoch."""
        self._seed, self._epoch = seed, epoch

    def train_examples(self, examples: Tensor) -> tuple[Tensor, Tensor]:
        """Augmented images and labels at these positions, shape (n,), made in this process."""
        return self._normalise(self._views["train", self._seed, self._epoch, examples.tolist()])

    def val_examples(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Images and labels of the validation set from start to stop, made in this process."""
        return self._normalise(self._views["val", 0, 0, range(start, stop)])

    def train_stream(self, asked: Iterable[Tensor]) -> Iterator[Batch]:
        """The results of `train_examples` for each of these, prepared ahead by workers."""
        examples = (positions.tolist() for positions in asked)
        return self._stream_views("train", self._seed, self._epoch, examples)

    def val_stream(self, asked: Iterable[tuple[int, int]]) -> Iterator[Batch]:
        """The results of `val_examples` for each start and stop, prepared ahead by workers."""
        return self._stream_views("val", 0, 0, (range(*bounds) for bounds in asked))

    def _stream_views(
        self, split: str, seed: int, epoch: int, asked: Iterable[Sequence[int]]
    ) -> Iterator[Batch]:
        num_parts = deque[int]()

        def request_parts() -> Iterator[_Part]:
            for examples in asked:
                num_parts.append(-(-len(examples) // _PART))
                for first in range(0, len(examples), _PART):
                    yield split, seed, epoch, examples[first : first + _PART]

        if self._loader is None:
            self.settle(self._device, ranks_on_node=1)
        assert self._loader is not None
        self._requests.pending = request_parts()
        ready: list[Batch] = []
        for part in self._loader:
            inputs, labels = (tensor.to(self._device, non_blocking=True) for tensor in part)
            ready.append((inputs, labels))
            if len(ready) == num_parts[0]:
                num_parts.popleft()
                images, classes = (torch.cat(tensors) for tensors in zip(*ready, strict=True))
                yield self._normalise((images, classes))
                ready = []

    def _normalise(self, batch: Batch) -> Batch:
        images, labels = batch
        channels_last = images.contiguous(memory_format=torch.channels_last).float()
        mean, std = (
            copy_async(torch.tensor(v), images.device)[:, None, None] for v in (_MEAN, _STD)
        )
        return channels_last.mul_(1 / (255 * std)).sub_(mean / std), labels


# Of ImageNet's channels, as fractions of full brightness.
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class _Views(Dataset[Batch]):
    """Views of `size` pixels for training and evaluation; made in the workers.

    The shorter side of a validation image is `resize` pixels before its centre is taken.
    """

    def __init__(
        self,
        splits: dict[str, FolderImages | ParquetImages],
        *,
        size: int,
        resize: int,
        augment: str | None,
    ) -> None:
        self._splits, self._size, self._resize = splits, size, resize
        self._augment = augment

    def __getitem__(self, index: _Part) -> Batch:
        """Views, shape (n, 3, size, size), uint8, and labels, shape (n,)."""
        split, seed, epoch, examples = index
        images = self._splits[split]
        views = torch.empty(len(examples), 3, self._size, self._size, dtype=torch.uint8)
        positions = np.fromiter(examples, dtype=np.int64, count=len(examples))
        draws = example_uniforms(seed, epoch, positions, RESIZED_CROP_DRAWS)
        if self._augment == "crop":
            draws[:, -1] = 1  # never mirrored
        for view, example, own_draws in zip(views, examples, draws, strict=True):
            encoded = images.read_bytes(example)
            image = decode_image(encoded, channels=3, name=lambda e=example: images.name(e))
            if split == "train" and self._augment != "none":
                view.copy_(random_resized_crop(image, own_draws, size=self._size))
            else:
                view.copy_(central_crop(image, resize=self._resize, size=self._size))
        return views, torch.from_numpy(images.labels[positions])


def worker_count(stated: int | str, *, ranks_on_node: int, device: torch.device) -> int:
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
