"""Images in parquet as Hugging Face lays them out: encoded bytes and a label in each row."""

import bisect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from lightning_modules.data.labels import check_labels

_IMAGE_COLUMNS = ("image", "img")
_LABEL_COLUMNS = ("label", "fine_label")
_SPLITS = {"train": ("train",), "val": ("validation", "val", "test")}


class ParquetImages:
    """Encoded images and labels of one split: rows of one or more parquet files, in their order.

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
            parquet = _opened(path)
            column = _first_of(_LABEL_COLUMNS, parquet, path)
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

    def encoded(self, row: int) -> bytes:
        """The encoded image of a row; its whole row group is read and cached."""
        group = bisect.bisect_right(self._starts, row) - 1
        if self._cached[0] != group:
            self._cached = (group, self._images_of(group))
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

    def _images_of(self, group: int) -> list[bytes | None]:
        path, number = self._groups[group]
        if path not in self._open:
            self._open[path] = _opened(path)
        parquet = self._open[path]
        column = _first_of(_IMAGE_COLUMNS, parquet, path)
        try:
            table = parquet.read_row_group(number, [f"{column}.bytes"], use_threads=False)
        except (pa.ArrowException, OSError) as error:
            raise ValueError(_unreadable(path, error)) from error
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


def _opened(path: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(_unreadable(path, error)) from error


def _unreadable(path: Path, error: Exception) -> str:
    return (
        f"every data file must be a complete parquet file; {path} is not: {error}. Download it "
        "again."
    )


def _first_of(columns: Sequence[str], parquet: pq.ParquetFile, path: Path) -> str:
    present = parquet.schema_arrow.names
    for column in columns:
        if column in present:
            return column
    msg = (
        f"{path} must have a column {' or '.join(columns)}; it has {', '.join(present)}. "
        "Rename the column."
    )
    raise ValueError(msg)
