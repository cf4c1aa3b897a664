"""Large images, such as ImageNet: decoded and augmented by worker processes as they are needed."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lightning_modules.data.augment import (
    RESIZED_CROP_DRAWS,
    central_crop,
    decode_image,
    random_resized_crop,
)
from lightning_modules.data.on_disk import check_all_classes, check_count, open_images
from lightning_modules.data.randomness import example_uniforms
from lightning_modules.data.streaming import Batch, Stream, workers_for
from lightning_modules.process.device import copy_async
from sweeper.spec.values import Count


class EncodedImages(Protocol):
    """The encoded images of a split, and the class of each: labels of shape (n,)."""

    labels: npt.NDArray[np.int64]

    def encoded(self, row: int) -> bytes:
        """The bytes of an image."""
        ...

    def name(self, row: int) -> str:
        """Description of where an image is."""
        ...


class LargeImages:
    """A data set of images of any size, from folders of classes or from parquet.

    Training images are random parts, resized and half of them mirrored, by draws that are functions
    of (seed, epoch, example); validation images are central parts. Workers send uint8 pixels, which
    are normalised on the device that trains. Shapes: images (n, 3, size, size), labels (n,).

    The name is part of a run's identity, the folder is not; `source` is folder
    (``train/class/*.jpeg``, ``val/class/*.jpeg``) or parquet; `num_workers` is the number of
    decoding processes per rank, or auto; `resize` is the shorter side of a validation image before
    its centre is taken [pixels].

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
    ) -> None:
        del name
        self.input_shape = (3, size, size)
        self.num_classes = num_classes
        self.num_train_examples = num_train_examples
        self._num_workers = num_workers
        train, val = (
            open_images(Path(root), source, split, num_classes) for split in ("train", "val")
        )
        check_count("num_train_examples", num_train_examples, len(train.labels), root)
        check_count("num_val_examples", num_val_examples, len(val.labels), root)
        check_all_classes(train.labels, num_classes=num_classes, where=root)
        self._num_val_examples = num_val_examples
        self._make = ViewMaker({"train": train, "val": val}, size=size, resize=resize)
        self._seed, self._epoch = 0, 0
        self._stream: Stream | None = None
        self._device = torch.device("cpu")

    @property
    def num_val_examples(self) -> int:
        """Images of the validation set [examples]."""
        return self._num_val_examples

    def settle(self, device: torch.device, *, ranks_on_node: int) -> None:
        """Start the workers that this rank gets, for the device that trains."""
        num = workers_for(self._num_workers, ranks_on_node=ranks_on_node, device=device)
        self._device = device
        self._stream = Stream(self._make, num_workers=num, device=device)

    def set_epoch(self, seed: int, epoch: int) -> None:
        """Choose the augmentation of a 0-based epoch."""
        self._seed, self._epoch = seed, epoch

    def train_examples(self, examples: Tensor) -> tuple[Tensor, Tensor]:
        """Augmented images and labels at these positions, shape (n,), made in this process."""
        return self._normalise(self._make("train", self._seed, self._epoch, examples.tolist()))

    def val_examples(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Images and labels of the validation set from start to stop, made in this process."""
        return self._normalise(self._make("val", 0, 0, range(start, stop)))

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
        if self._stream is None:
            self.settle(self._device, ranks_on_node=1)
        assert self._stream is not None
        return map(self._normalise, self._stream.batches(split, seed, epoch, asked))

    def _normalise(self, batch: Batch) -> Batch:
        images, labels = batch
        channels_last = images.contiguous(memory_format=torch.channels_last).float()
        mean, std = (
            copy_async(torch.tensor(v), images.device)[:, None, None] for v in (_MEAN, _STD)
        )
        return channels_last.mul_(1 / (255 * std)).sub_(mean / std), labels


# Of ImageNet's channels, as fractions of full brightness.
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class ViewMaker:
    """Makes views of `size` pixels for training and evaluation; runs in the workers.

    The shorter side of a validation image is `resize` pixels before its centre is taken.
    """

    def __init__(self, splits: dict[str, EncodedImages], *, size: int, resize: int) -> None:
        self._splits, self._size, self._resize = splits, size, resize

    def __call__(self, split: str, seed: int, epoch: int, examples: Sequence[int]) -> Batch:
        """Views, shape (n, 3, size, size), uint8, and labels, shape (n,)."""
        images = self._splits[split]
        views = torch.empty(len(examples), 3, self._size, self._size, dtype=torch.uint8)
        positions = np.fromiter(examples, dtype=np.int64, count=len(examples))
        draws = example_uniforms(seed, epoch, positions, RESIZED_CROP_DRAWS)
        for view, example, own_draws in zip(views, examples, draws, strict=True):
            encoded = images.encoded(example)
            image = decode_image(encoded, channels=3, name=lambda e=example: images.name(e))
            if split == "train":
                view.copy_(random_resized_crop(image, own_draws, size=self._size))
            else:
                view.copy_(central_crop(image, resize=self._resize, size=self._size))
        return views, torch.from_numpy(images.labels[positions])
