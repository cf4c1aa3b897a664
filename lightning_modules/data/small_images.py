"""Small images in memory: decoded once, shared by the runs of a sweep, augmented in batches."""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lightning_modules.data.augment import shifted_and_flipped
from lightning_modules.data.decode import decoded
from lightning_modules.data.labels import check_all_classes, check_count
from lightning_modules.data.parquet import ParquetImages, missing_files, split_files
from lightning_modules.data.randomness import epoch_order, example_uniforms
from lightning_modules.data.shared import shared_array
from lightning_modules.data.torchvision_files import torchvision_images
from lightning_modules.process.transfer import copy_async
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
    files if `num_train_examples` of them are drawn at random, the same ones for every seed; None to
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
        self.num_train_examples = num_train_examples
        self._padding, self._flip = padding, flip
        self._mean, self._std = torch.tensor(mean), torch.tensor(std)
        read = _reader(name, Path(root), source, download=download)
        train, train_labels = read("train", self.input_shape, num_classes)
        val, val_labels = read("val", self.input_shape, num_classes)
        if drawn_from is None:
            check_count("num_train_examples", num_train_examples, len(train), root)
        else:
            check_count("drawn_from", drawn_from, len(train), root)
            drawn = _drawn(num_train_examples, drawn_from)
            train, train_labels = train[drawn], train_labels[drawn]
        check_count("num_val_examples", num_val_examples, len(val), root)
        check_all_classes(train_labels, num_classes=num_classes, where=root)
        self._train, self._val = torch.from_numpy(train), torch.from_numpy(val)
        self._train_labels = torch.from_numpy(train_labels)
        self._val_labels = torch.from_numpy(val_labels)
        self._seed, self._epoch = 0, 0

    @property
    def num_val_examples(self) -> int:
        """Images of the validation set [examples]."""
        return len(self._val_labels)

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
        images = shifted_and_flipped(
            images, torch.from_numpy(draws), padding=self._padding, flip=self._flip
        )
        return self._normalised(images), self._train_labels[examples]

    def val_examples(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Images and labels of the validation set from start to stop."""
        return self._normalised(self._val[start:stop]), self._val_labels[start:stop]

    def _normalised(self, images: Tensor) -> Tensor:
        """Shape (n, height, width, channels) to (n, channels, height, width), channels last."""
        scaled = images.float().mul_(1 / (255 * self._std)).sub_(self._mean / self._std)
        return scaled.permute(0, 3, 1, 2)


def _drawn(num: int, drawn_from: int) -> npt.NDArray[np.int64]:
    """Positions of the images that a smaller training set keeps, in the order of the files."""
    if num > drawn_from:
        msg = (
            "data.num_train_examples must not exceed data.drawn_from, the images they are drawn "
            f"from; got data.num_train_examples={num}, data.drawn_from={drawn_from}. Draw fewer."
        )
        raise ValueError(msg)
    return np.sort(epoch_order(0, 0, drawn_from)[:num])


Reader = Callable[[str, tuple[int, ...], int], tuple[Pixels, Labels]]


def _reader(name: str, root: Path, source: str, *, download: bool) -> Reader:
    """Reads a split: images, shape (n, height, width, channels), and labels, shape (n,)."""
    if source == "parquet":
        return lambda split, shape, classes: _from_parquet(root, split, shape, classes)
    if source == "torchvision":
        return lambda split, shape, classes: torchvision_images(
            name, root, split, shape, classes, download=download
        )
    msg = f"data.source must be parquet or torchvision; got data.source={source!r}."
    raise ValueError(msg)


def _from_parquet(
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
    key = f"images-{_fingerprint(files)}-{'x'.join(map(str, shape))}"
    return shared_array(key, lambda: _decoded_rows(rows, shape)), rows.labels


def _decoded_rows(rows: ParquetImages, shape: tuple[int, ...]) -> Pixels:
    channels, height, width = shape
    pixels = np.empty((len(rows), height, width, channels), dtype=np.uint8)
    for row in range(len(rows)):
        image = decoded(rows.encoded(row), channels=channels, name=lambda row=row: rows.name(row))
        if image.shape != shape:
            msg = (
                f"every image must be {width} x {height} pixels; {rows.name(row)} is "
                f"{image.shape[2]} x {image.shape[1]}. Correct data.shape or the file."
            )
            raise ValueError(msg)
        pixels[row] = image.permute(1, 2, 0).numpy()
    return pixels


def _fingerprint(files: Sequence[Path]) -> str:
    """Changes when a file is replaced: paths, sizes and times of change."""
    stats = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return hashlib.sha256(repr(stats).encode()).hexdigest()[:16]
