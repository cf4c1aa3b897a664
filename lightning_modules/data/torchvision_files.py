"""The small image sets as torchvision keeps them on disk, fetched on request."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from filelock import FileLock
from torchvision import datasets

from lightning_modules.data.labels import check_labels

#: What the root must hold for each data set, for the error message.
_FILES = {
    "CIFAR10": "cifar-10-batches-py/ (from cifar-10-python.tar.gz)",
    "CIFAR100": "cifar-100-python/ (from cifar-100-python.tar.gz)",
    "MNIST": "MNIST/raw/ with train-images-idx3-ubyte.gz and the three other archives",
    "FashionMNIST": "FashionMNIST/raw/ with train-images-idx3-ubyte.gz and the three others",
}


def torchvision_images(
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
    found = _opened(name, root, is_train=split == "train", download=download)
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


def _opened(name: str, root: Path, *, is_train: bool, download: bool) -> Any:
    if download:
        root.mkdir(parents=True, exist_ok=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if not download:
                return getattr(datasets, name)(root, train=is_train)
            with FileLock(root / f".{name}.lock"):  # runs start together; one of them fetches
                return getattr(datasets, name)(root, train=is_train, download=True)
    except (OSError, RuntimeError, EOFError) as error:
        asked = f"data.download={str(download).lower()}"
        remedy = "" if download else ", or set data.download=true if there is a network"
        msg = (
            f"data.root must hold torchvision's files of {name}; got data.root={root} with "
            f"{asked}: {' '.join(str(error).split())}. Put {_FILES[name]} there{remedy}."
        )
        raise ValueError(msg) from error
