"""Images in folders or parquet files, and what a plan can know about data on disk without torch."""

import bisect
import hashlib
import io
import os
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from lightning_modules.data.tokens import embedded_version, load_tokens
from sweeper.spec.sentences import read_model
from sweeper.spec.values import Count, Fraction, Settings, Switch, Text

_SHOWN = 10


def check_labels(labels: npt.NDArray[np.int64], *, num_classes: int, where: str) -> None:
    """Refuse labels, shape (n,), outside of 0 to num_classes - 1.

    Raises:
        ValueError: naming the place, the first wrong row and its label.
    """
    wrong = np.flatnonzero((labels < 0) | (labels >= num_classes))
    if len(wrong):
        msg = (
            f"labels must be 0 to {num_classes - 1}; {where} has label {labels[wrong[0]]} in row "
            f"{wrong[0]} ({len(wrong)} wrong in all). Correct the file or data.num_classes."
        )
        raise ValueError(msg)


def check_all_classes(labels: npt.NDArray[np.int64], *, num_classes: int, where: str) -> None:
    """Refuse a training set in which a class has no example.

    Raises:
        ValueError: naming the place and the classes.
    """
    missing = np.setdiff1d(np.arange(num_classes), labels)
    if len(missing):
        shown = ", ".join(map(str, missing[:_SHOWN])) + (" ..." if len(missing) > _SHOWN else "")
        msg = (
            f"every class must have training examples; {where} has none of {len(missing)} of "
            f"{num_classes} classes: {shown}. Complete the data or correct data.num_classes."
        )
        raise ValueError(msg)


def check_count(key: str, stated: int, found: int, where: str) -> None:
    """Refuse a split whose size is not what the config states.

    Raises:
        ValueError: with both numbers.
    """
    if stated != found:
        msg = (
            f"data.{key} must be the size of the data set; got {stated}, {where} holds {found}. "
            f"Set data.{key}={found} if this is the data you mean."
        )
        raise ValueError(msg)


_ENDINGS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")


class FolderImages:
    """The images of a split: ``root/split/class/.../image``; classes are numbered by their names.

    The root holds train and val, with the same classes; with `num_classes` None, whatever classes
    there are. With a `val_fraction` it holds the classes themselves, and a file is for validation
    by a hash of its path below the root, which files that are added later do not change. Labels
    are of shape (n,).

    Raises:
        ValueError: if the folder is missing, has other classes than it should, or an empty class.
    """

    def __init__(
        self, root: Path, split: str, *, num_classes: int | None, val_fraction: float | None = None
    ) -> None:
        if val_fraction is None:
            classes, folder = check_classes(root, num_classes), root / split
        else:
            classes, folder = _list_classes(root, num_classes), root
        files = [
            sorted(
                path
                for parent, _, names in os.walk(folder / kind)
                for name in names
                if name.lower().endswith(_ENDINGS)
                # A million paths: Path objects are slow.
                for path in [os.path.join(parent, name)]  # noqa: PTH118
                if val_fraction is None or split == _split_of(path, root, val_fraction)
            )
            for kind in classes
        ]
        for kind, paths in zip(classes, files, strict=True):
            if not paths:
                share = f" for {split} at data.val_fraction={val_fraction}" * (
                    val_fraction is not None
                )
                msg = (
                    f"every class must have images; {folder / kind} has none{share}. Complete the "
                    "data or remove it."
                )
                raise ValueError(msg)
        self.labels = np.repeat(np.arange(len(classes)), [len(paths) for paths in files])
        # One block of memory, which worker processes share: lists are copied as they are read.
        self._files = np.array([os.fsencode(path) for paths in files for path in paths])

    def read_bytes(self, row: int) -> bytes:
        """The bytes of an image file."""
        return Path(self.name(row)).read_bytes()

    def name(self, row: int) -> str:
        """The path of an image."""
        return os.fsdecode(self._files[row])


def _split_of(path: str, root: Path, val_fraction: float) -> str:
    digest = hashlib.blake2b(os.path.relpath(path, root).encode(), digest_size=8).digest()
    return "val" if int.from_bytes(digest, "big") < val_fraction * 2**64 else "train"


def check_classes(root: Path, num_classes: int | None) -> list[str]:
    """The classes of a folder of images, which train and val share.

    Raises:
        ValueError: if a folder is missing, or has other classes than it should.
    """
    classes = _list_classes(root / "train", num_classes)
    others = _list_classes(root / "val", len(classes))
    if others != classes:
        missing, more = set(classes) - set(others), set(others) - set(classes)
        msg = (
            f"{root / 'val'} must hold the same classes as train; it lacks "
            f"{', '.join(sorted(missing)[:3])} and has {', '.join(sorted(more)[:3])}. Make the "
            "folders agree."
        )
        raise ValueError(msg)
    return classes


def _list_classes(folder: Path, num_classes: int | None) -> list[str]:
    if not folder.is_dir():
        missing = folder if folder.parent.is_dir() else folder.parent
        msg = (
            f"data.root must hold the folders train and val, with a folder per class in each; "
            f"{missing} does not exist. Put the images there, set data.root, or set "
            "data.val_fraction=0.1 where the root holds the classes."
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


_IMAGE_COLUMNS = ("image", "img")
_LABEL_COLUMNS = ("label", "fine_label")
_SPLITS = {"train": ("train",), "val": ("validation", "val", "test")}


class ParquetImages:
    """Encoded images and labels of a split: rows of parquet files, in their order.

    The files have a column of structs ``{bytes, path}`` called image or img, and a column of class
    numbers called label or fine_label.

    Labels, shape (n,), are 0 to num_classes - 1; with None, they are not checked.

    Raises:
        ValueError: if a file is not of this layout, or its labels are wrong; the file is named.
    """

    def __init__(self, files: Sequence[Path], *, num_classes: int | None) -> None:
        self._files = files
        self._groups: list[tuple[Path, int]] = []
        self._starts: list[int] = []
        self._open: dict[Path, pq.ParquetFile] = {}
        self._cached: tuple[int, list[bytes | None]] = (-1, [])
        labels: list[npt.NDArray[np.int64]] = []
        rows = 0
        for path in files:
            with _explain_errors(path):
                parquet = pq.ParquetFile(path)
            column = _find_column(_LABEL_COLUMNS, parquet, path)
            labels.append(parquet.read([column])[column].to_numpy().astype(np.int64))
            if num_classes is not None:
                check_labels(labels[-1], num_classes=num_classes, where=str(path))
            for group in range(parquet.num_row_groups):
                self._groups.append((path, group))
                self._starts.append(rows)
                rows += parquet.metadata.row_group(group).num_rows
        self.labels = np.concatenate(labels)

    def __len__(self) -> int:
        return len(self.labels)

    def read_bytes(self, row: int) -> bytes:
        """The encoded image of a row; its whole row group is read and cached."""
        group = bisect.bisect_right(self._starts, row) - 1
        if self._cached[0] != group:
            self._cached = (group, self._read_group(group))
        found = self._cached[1][row - self._starts[group]]
        if found is None:
            msg = f"every row must hold an image; {self.name(row)} has none. Remove the row."
            raise ValueError(msg)
        return found

    def name(self, row: int) -> str:
        """Description of where a row is."""
        group = bisect.bisect_right(self._starts, row) - 1
        path = self._groups[group][0]
        first = next(s for s, (p, _) in zip(self._starts, self._groups, strict=True) if p == path)
        return f"row {row - first} of {path}"

    def __getstate__(self) -> dict[str, Any]:
        """Without the open files, so that each loading process opens its own."""
        return {**self.__dict__, "_open": {}, "_cached": (-1, [])}

    def _read_group(self, group: int) -> list[bytes | None]:
        path, number = self._groups[group]
        with _explain_errors(path):
            if path not in self._open:
                self._open[path] = pq.ParquetFile(path)
            parquet = self._open[path]
            column = _find_column(_IMAGE_COLUMNS, parquet, path)
            table = parquet.read_row_group(number, [f"{column}.bytes"], use_threads=False)
        return [image and image["bytes"] for image in table[column].to_pylist()]


def split_files(root: Path, split: str) -> list[Path]:
    """The parquet files of a split below a folder, by the beginnings of their names.

    They may lie deeper, as in ``data/train-00000-of-00002.parquet``; val is the first that exists
    of validation, val and test.
    """
    for beginning in _SPLITS[split]:
        if files := sorted(root.rglob(f"{beginning}*.parquet")):
            return files
    return []


def missing_files(root: Path, split: str) -> str:
    """A sentence for a split that has no files."""
    names = " or ".join(f"{beginning}*.parquet" for beginning in _SPLITS[split])
    return (
        f"data.root must hold parquet files of images; got data.root={root}, which has no "
        f"{names}. Put the files there (columns image: {{bytes, path}} and label)"
    )


@contextmanager
def _explain_errors(path: Path) -> Generator[None]:
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        msg = (
            f"every data file must be a complete parquet file; {path} is not: {error}. Download it "
            "again."
        )
        raise ValueError(msg) from error


def _find_column(columns: Sequence[str], parquet: pq.ParquetFile, path: Path) -> str:
    present = parquet.schema_arrow.names
    for column in columns:
        if column in present:
            return column
    msg = (
        f"{path} must have a column {' or '.join(columns)}; it has {', '.join(present)}. "
        "Rename the column."
    )
    raise ValueError(msg)


#: A folder with more images is counted only by its runs, as listing it takes long.
_FEW = 200_000


def open_images(
    root: Path,
    source: str,
    split: str,
    num_classes: int | None,
    val_fraction: float | None = None,
) -> FolderImages | ParquetImages:
    """The images of a split, from folders of classes or from parquet.

    Raises:
        ValueError: if there are none, or the source is neither of the two.
    """
    if source == "folder":
        return FolderImages(root, split, num_classes=num_classes, val_fraction=val_fraction)
    if val_fraction is not None:
        msg = (
            f"data.val_fraction must be null with parquet files, whose names say the split; got "
            f"data.val_fraction={val_fraction}. Remove it, or use data.source=folder."
        )
        raise ValueError(msg)
    if source != "parquet":
        msg = f"data.source must be folder or parquet; got data.source={source!r}."
        raise ValueError(msg)
    if files := split_files(root, split):
        return ParquetImages(files, num_classes=num_classes)
    msg = f"{missing_files(root, split)}, or use data.source=folder for folders of classes."
    raise ValueError(msg)


class _Text(Settings, extra="allow"):
    """The settings of a text that are read here."""

    root: Text | None
    vocabulary: Count
    length: Count
    num_train_examples: Count | None
    num_val_examples: Count

    def counts(self) -> dict[str, Any]:
        """Sequences to train on, all or the first, and the version of the embedded text."""
        tokens = len(load_tokens(self.root, self.vocabulary))
        sequences, left_out = max(0, tokens - 1) // self.length, self.num_val_examples
        if (number := sequences - left_out) < 1:
            msg = (
                f"a text must have more than data.num_val_examples={left_out} sequences; got "
                f"{tokens:,} tokens, {sequences} of data.length={self.length}. Use a longer text, "
                "or lower one of the two."
            )
            raise ValueError(msg)
        version = {} if self.root else {"version": embedded_version()}
        return {"num_train_examples": min(number, self.num_train_examples or number), **version}


class _Images(Settings, extra="allow"):
    """The settings of large images that are read here."""

    root: Text
    source: Literal["folder", "parquet"]
    num_classes: Count | None
    num_train_examples: Count | None
    num_val_examples: Count | None
    val_fraction: Fraction | None = None
    size: Count | None = None
    resize: Count | None = None

    def counts(self) -> dict[str, int]:
        """Classes, and images of each split; images of a huge folder are counted by its runs.

        A size that is not given is ImageNet's, or that of the images where they are smaller.
        """
        stated = (self.num_train_examples or 0) + (self.num_val_examples or 0)
        root, of, size = Path(self.root), self.num_classes, self.size or _SIZE
        if self.source == "folder" and stated > _FEW:
            found = {"num_classes": len(check_classes(root, of))}
        else:
            train, val = (
                open_images(root, self.source, split, of, self.val_fraction)
                for split in ("train", "val")
            )
            found = {
                "num_classes": int(train.labels.max()) + 1,
                "num_train_examples": len(train.labels),
                "num_val_examples": len(val.labels),
            }
            size = self.size or min(_SIZE, _shorter_side(train))
        given = {"size": self.size, "resize": self.resize}
        sizes = {"size": size, "resize": 256 if size == _SIZE else size}
        return found | {key: number for key, number in sizes.items() if given[key] is None}


#: Of ImageNet's training images [pixels].
_SIZE = 224


def _shorter_side(images: FolderImages | ParquetImages, sample: int = 32) -> int:
    """The median of the shorter sides of images from all over a split, those that open [pixels]."""
    rows = np.linspace(0, len(images.labels) - 1, min(sample, len(images.labels))).astype(int)
    sides = list[int]()
    for row in rows.tolist():
        with suppress(OSError, ValueError), Image.open(io.BytesIO(images.read_bytes(row))) as image:
            sides.append(min(image.size))
    return int(np.median(sides or [_SIZE]))


class _SmallImages(Settings, extra="allow"):
    """The settings of small images that are read here."""

    name: Text
    root: Text
    source: Literal["parquet", "torchvision"]
    download: Switch

    def counts(self) -> dict[str, int]:
        """No counts, as a run reads these data sets whole; checks that their files exist."""
        root = Path(self.root)
        for split in ("train", "val") if self.source == "parquet" else ():
            if not split_files(root, split):
                msg = f"{missing_files(root, split)}."
                raise ValueError(msg)
        if self.source == "torchvision" and not self.download and not root.is_dir():
            msg = (
                f"data.root must hold torchvision's files of {self.name}; got data.root={root}, "
                "which does not exist. Put them there, or set data.download=true if there is a "
                "network."
            )
            raise ValueError(msg)
        return {}


_ON_DISK: dict[str, type[_Text | _Images | _SmallImages]] = {
    "lightning_modules.data.large_images.LargeImages": _Images,
    "lightning_modules.data.small_images.SmallImages": _SmallImages,
    "lightning_modules.data.text.TextTokens": _Text,
}


def fill_counts(data: Mapping[str, Any]) -> dict[str, Any]:
    """The config group of a data set, with counts that are null replaced by those of its files.

    Args:
        data: the resolved group; returned unchanged unless it is a data set of ours on disk.

    Raises:
        ValueError: if files are missing, or the stated counts differ from theirs.
    """
    kind = _ON_DISK.get(str(data.get("_target_")))
    if kind is None:
        return dict(data)
    found = read_model(kind, data, "data.").counts()
    for key, number in found.items():
        if data.get(key) is not None and key != "version":  # which its runs check
            check_count(key, data[key], number, data["root"] or data["name"])
    return found | {
        key: value for key, value in data.items() if value is not None or key not in found
    }
