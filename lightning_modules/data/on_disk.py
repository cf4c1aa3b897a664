"""What a plan can know about data on disk without torch: whether they exist, and their counts."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from lightning_modules.data.folder import FolderImages, check_classes
from lightning_modules.data.labels import check_count
from lightning_modules.data.parquet import ParquetImages, missing_files, split_files
from sweeper.spec.sentences import read_model
from sweeper.spec.values import Count, Settings, Switch, Text

#: A folder with more images is counted only by its runs, as listing it takes long.
_FEW = 200_000


def opened(
    root: Path, source: str, split: str, num_classes: int | None
) -> FolderImages | ParquetImages:
    """The images of a split, from folders of classes or from parquet.

    Raises:
        ValueError: if there are none, or the source is neither of the two.
    """
    if source == "folder":
        return FolderImages(root, split, num_classes=num_classes)
    if source != "parquet":
        msg = f"data.source must be folder or parquet; got data.source={source!r}."
        raise ValueError(msg)
    if files := split_files(root, split):
        return ParquetImages(files, num_classes=num_classes)
    msg = f"{missing_files(root, split)}, or use data.source=folder for folders of classes."
    raise ValueError(msg)


class _Bytes(Settings, extra="allow"):
    """The settings of a text that are read here."""

    root: Text
    length: Count
    num_val_examples: Count

    def counts(self) -> dict[str, int]:
        """Sequences to train on."""
        if not Path(self.root).is_file():
            msg = f"data.root must be a text file; got data.root={self.root}, which does not exist."
            raise ValueError(msg)
        sequences = max(0, Path(self.root).stat().st_size - 1) // self.length
        return {"num_train_examples": sequences - self.num_val_examples}


class _Images(Settings, extra="allow"):
    """The settings of large images that are read here."""

    root: Text
    source: Literal["folder", "parquet"]
    num_classes: Count | None
    num_train_examples: Count | None
    num_val_examples: Count | None

    def counts(self) -> dict[str, int]:
        """Classes, and images of each split; images of a huge folder are counted by its runs."""
        stated = (self.num_train_examples or 0) + (self.num_val_examples or 0)
        if self.source == "folder" and stated > _FEW:
            return {"num_classes": len(check_classes(Path(self.root), self.num_classes))}
        root, of = Path(self.root), self.num_classes
        train, val = (opened(root, self.source, s, of).labels for s in ("train", "val"))
        return {
            "num_classes": int(train.max()) + 1,
            "num_train_examples": len(train),
            "num_val_examples": len(val),
        }


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


_ON_DISK: dict[str, type[_Bytes | _Images | _SmallImages]] = {
    "lightning_modules.data.large_images.LargeImages": _Images,
    "lightning_modules.data.small_images.SmallImages": _SmallImages,
    "lightning_modules.data.text.TextBytes": _Bytes,
}


def counted(data: Mapping[str, Any]) -> dict[str, Any]:
    """The config group of a data set, with counts that are null replaced by those of its files.

    Args:
        data: the resolved group; returned unchanged unless it is one of our data sets on disk.

    Raises:
        ValueError: if files are missing, or the stated counts differ from theirs.
    """
    kind = _ON_DISK.get(str(data.get("_target_")))
    if kind is None:
        return dict(data)
    found = read_model(kind, data, "data.").counts()
    for key, number in found.items():
        if data.get(key) is not None:
            check_count(key, data[key], number, data["root"])
    return {key: found.get(key) if value is None else value for key, value in data.items()}
