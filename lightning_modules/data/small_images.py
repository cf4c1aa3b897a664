"""Small images in memory: decoded once, shared by the runs of a sweep, augmented in batches."""

import hashlib
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from filelock import FileLock
from torch import Tensor
from torchvision import datasets

from lightning_modules.data.augment import decode_image, shift_and_flip
from lightning_modules.data.image_files import (
    ParquetImages,
    check_all_classes,
    check_count,
    check_labels,
    missing_files,
    split_files,
)
from lightning_modules.data.randomness import epoch_order, example_uniforms
from lightning_modules.data.shared import shared_array
from lightning_modules.process.device import copy_async
from sweeper.spec.values import Count

Pixels = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]


class SmallImages:
    """A data set of small images, such as CIFAR-10, from parquet or from torchvision's files.

    Training images are shifted within a zero padding and mirrored, by draws that are functions of
    (seed, epoch, example); validation images are untouched. On a GPU the images live there.
    Shapes: images (n, channels, height, width), labels (n,).

    For torchvision's files the name is CIFAR10, CIFAR100, MNIST or FashionMNIST; `shape` is
    channels, height, width; `padding` limits the random shift [pixels]; mean and std are per
    channel, as fractions of full brightness. `drawn_from` is the number of training images in the
    files if `num_train_examples` of them are drawn at random, the same for every seed; None to
    use all.

    Raises:
        ValueError: if the files are missing or are not what the settings say.
    """

    def __init__(  # noqa: PLR0913  the keys of its config file
        self,
        *,
        name: str,
        root: str,
        source: str,
        download: bool,
        shape: Sequence[Count],
        num_classes: Count,
        num_train_examples: int,
        num_val_examples: int,
        padding: int,
        flip: bool,
        mean: Sequence[float],
        std: Sequence[float],
        drawn_from: int | None = None,
    ) -> None:
        self.input_shape = tuple(shape)
        self.num_classes = num_classes
        self.num_train_examples, self.num_val_examples = num_train_examples, num_val_examples
        self._padding, self._flip = padding, flip
        self._mean, self._std = torch.tensor(mean), torch.tensor(std)
        if source not in {"parquet", "torchvision"}:
            msg = f"data.source must be parquet or torchvision; got data.source={source!r}."
            raise ValueError(msg)

        def read(split: str) -> tuple[Pixels, Labels]:
            known = (Path(root), split, self.input_shape, num_classes)
            if source == "parquet":
                return _read_parquet(*known)
            return _read_torchvision(name, *known, download=download)

        train, train_labels = read("train")
        val, val_labels = read("val")
        if drawn_from is None:
            check_count("num_train_examples", num_train_examples, len(train), root)
        else:
            check_count("drawn_from", drawn_from, len(train), root)
            if num_train_examples > drawn_from:
                msg = (
                    "data.num_train_examples must not exceed data.drawn_from, the images they are "
                    f"drawn from; got data.num_train_examples={num_train_examples}, "
                    f"data.drawn_from={drawn_from}. Draw fewer."
                )
                raise ValueError(msg)
            drawn = np.sort(epoch_order(0, 0, drawn_from)[:num_train_examples])
            train, train_labels = train[drawn], train_labels[drawn]
        check_count("num_val_examples", num_val_examples, len(val), root)
        check_all_classes(train_labels, num_classes=num_classes, where=root)
        self._train, self._val = torch.from_numpy(train), torch.from_numpy(val)
        self._train_labels = torch.from_numpy(train_labels)
        self._val_labels = torch.from_numpy(val_labels)
        self._seed, self._epoch = 0, 0

    def settle(self, device: torch.device, *, ranks_on_node: int) -> None:
        """Move all images to the device that trains; they are augmented there."""
        del ranks_on_node
        for name in ("_train", "_val", "_train_labels", "_val_labels", "_mean", "_std"):
            setattr(self, name, getattr(self, name).to(device))

    def set_epoch(self, seed: int, epoch: int) -> None:
        """Choose the augmentation of a 0-based epoch."""
        self._seed, self._epoch = seed, epoch

    def train_examples(self, examples: Tensor) -> tuple[Tensor, Tensor]:
        """Augmented images and labels at these positions, shape (n,)."""
        draws = example_uniforms(self._seed, self._epoch, examples.numpy(), 3)
        examples = copy_async(examples, self._train.device)
        images = self._train.index_select(0, examples)  # copies whole rows
        images = shift_and_flip(
            images, torch.from_numpy(draws), padding=self._padding, flip=self._flip
        )
        return self._normalise(images), self._train_labels[examples]

    def val_examples(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Images and labels of the validation set from start to stop."""
        return self._normalise(self._val[start:stop]), self._val_labels[start:stop]

    def _normalise(self, images: Tensor) -> Tensor:
        """Shape (n, height, width, channels) to (n, channels, height, width), channels last."""
        scaled = images.float().mul_(1 / (255 * self._std)).sub_(self._mean / self._std)
        return scaled.permute(0, 3, 1, 2)


def _read_parquet(
    root: Path, split: str, shape: tuple[int, ...], num_classes: int
) -> tuple[Pixels, Labels]:
    files = split_files(root, split)
    if not files:
        msg = (
            f"{missing_files(root, split)}, or use data.source=torchvision for torchvision's own "
            "files, with data.download=true if there is a network."
        )
        raise ValueError(msg)
    rows = ParquetImages(files, num_classes=num_classes)
    # changes when a file is replaced
    stats = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    digest = hashlib.sha256(repr(stats).encode()).hexdigest()[:16]
    key = f"images-{digest}-{'x'.join(map(str, shape))}"
    return shared_array(key, lambda: _decode_rows(rows, shape)), rows.labels


def _decode_rows(rows: ParquetImages, shape: tuple[int, ...]) -> Pixels:
    channels, height, width = shape
    pixels = np.empty((len(rows), height, width, channels), dtype=np.uint8)
    for row in range(len(rows)):
        image = decode_image(
            rows.read_bytes(row), channels=channels, name=lambda row=row: rows.name(row)
        )
        if image.shape != shape:
            msg = (
                f"every image must be {width} x {height} pixels; {rows.name(row)} is "
                f"{image.shape[2]} x {image.shape[1]}. Correct data.shape or the file."
            )
            raise ValueError(msg)
        pixels[row] = image.permute(1, 2, 0).numpy()
    return pixels


#: What the root must hold for each data set, for the error message.
_FILES = {
    "CIFAR10": "cifar-10-batches-py/ (from cifar-10-python.tar.gz)",
    "CIFAR100": "cifar-100-python/ (from cifar-100-python.tar.gz)",
    "MNIST": "MNIST/raw/ with train-images-idx3-ubyte.gz and the three other archives",
    "FashionMNIST": "FashionMNIST/raw/ with train-images-idx3-ubyte.gz and the three others",
}


def _read_torchvision(
    name: str,
    root: Path,
    split: str,
    shape: tuple[int, ...],
    num_classes: int,
    *,
    download: bool,
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Images, shape (n, height, width, channels), and labels, shape (n,), of a split.

    The root holds the data set's own folder; val is what torchvision calls test; the expected shape
    is channels, height, width.

    Raises:
        ValueError: if the files are missing or are not of this shape.
    """
    if name not in _FILES:
        known = ", ".join(sorted(_FILES))
        msg = f"data.name must be one of {known} for data.source=torchvision; got {name!r}."
        raise ValueError(msg)
    if download:
        root.mkdir(parents=True, exist_ok=True)
    is_train = split == "train"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if download:
                with FileLock(root / f".{name}.lock"):  # runs start together; the first fetches
                    found: Any = getattr(datasets, name)(root, train=is_train, download=True)
            else:
                found = getattr(datasets, name)(root, train=is_train)
    except (OSError, RuntimeError, EOFError) as error:
        asked = f"data.download={str(download).lower()}"
        remedy = "" if download else ", or set data.download=true if there is a network"
        msg = (
            f"data.root must hold torchvision's files of {name}; got data.root={root} with "
            f"{asked}: {' '.join(str(error).split())}. Put {_FILES[name]} there{remedy}."
        )
        raise ValueError(msg) from error
    pixels, labels = np.asarray(found.data), np.asarray(found.targets, dtype=np.int64)
    if pixels.ndim == 3:  # grey images have no channel dimension there
        pixels = pixels[..., None]
    check_labels(labels, num_classes=num_classes, where=str(root))
    channels, height, width = shape
    if pixels.shape[1:] != (height, width, channels):
        msg = (
            f"data.shape must be the shape of {name}'s images; got data.shape={list(shape)}, "
            f"the files hold {pixels.shape[3]} x {pixels.shape[1]} x {pixels.shape[2]}."
        )
        raise ValueError(msg)
    return np.ascontiguousarray(pixels), labels
