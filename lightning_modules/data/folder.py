"""Images in folders named for their classes, as torchvision's ImageFolder reads them."""

import os
from pathlib import Path

import numpy as np

_ENDINGS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")


class FolderImages:
    """The images of one split: ``root/split/class/.../image``; classes are numbered by their names.

    The root holds train and val, with the same classes; with `num_classes` None, whatever classes
    there are. Labels are of shape (n,).

    Raises:
        ValueError: if the folder is missing, or has other classes than it should, or an empty one.
    """

    def __init__(self, root: Path, split: str, *, num_classes: int | None) -> None:
        classes = check_classes(root, num_classes)
        files = [_images_below(root / split / name) for name in classes]
        self.labels = np.repeat(np.arange(len(classes)), [len(paths) for paths in files])
        # One block of memory, which worker processes share: lists are copied as they are read.
        self._files = np.array([os.fsencode(path) for paths in files for path in paths])

    def __len__(self) -> int:
        return len(self.labels)

    def encoded(self, row: int) -> bytes:
        """The bytes of an image file."""
        return Path(self.name(row)).read_bytes()

    def name(self, row: int) -> str:
        """The path of an image."""
        return os.fsdecode(self._files[row])


def check_classes(root: Path, num_classes: int | None) -> list[str]:
    """The classes of a folder of images, which train and val share.

    Raises:
        ValueError: if a folder is missing, or has other classes than it should.
    """
    classes = _classes(root / "train", num_classes)
    _check_same_classes(root / "val", classes)
    return classes


def _classes(folder: Path, num_classes: int | None) -> list[str]:
    if not folder.is_dir():
        msg = (
            f"data.root must hold the folders train and val, with one folder per class in each; "
            f"{folder} does not exist. Put the images there or set data.root."
        )
        raise ValueError(msg)
    classes = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
    if not classes or num_classes not in {None, len(classes)}:
        shown = ", ".join(classes[:3]) + (" ..." if len(classes) > 3 else "")
        msg = (
            f"{folder} must hold {num_classes or 'some'} folders, one per class; it holds "
            f"{len(classes)}{f': {shown}' if classes else ''}. Complete the data or correct "
            "data.num_classes."
        )
        raise ValueError(msg)
    return classes


def _check_same_classes(folder: Path, classes: list[str]) -> None:
    others = _classes(folder, len(classes))
    if others != classes:
        missing = sorted(set(classes) - set(others))
        msg = (
            f"{folder} must hold the same classes as train; it lacks {', '.join(missing[:3])} and "
            f"has {', '.join(sorted(set(others) - set(classes))[:3])}. Make the folders agree."
        )
        raise ValueError(msg)


def _images_below(folder: Path) -> list[str]:
    found = sorted(
        os.path.join(parent, name)  # noqa: PTH118  a million paths: Path objects are slow
        for parent, _, names in os.walk(folder)
        for name in names
        if name.lower().endswith(_ENDINGS)
    )
    if not found:
        msg = f"every class must have images; {folder} has none. Complete the data or remove it."
        raise ValueError(msg)
    return found
