"""Small image sets made for the tests: parquet files and folders of classes."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pictures import encoded, noise_image


@pytest.fixture
def write_parquet() -> Callable[..., None]:
    """Writes images and labels as Hugging Face lays them out."""

    def write(
        path: Path,
        images: Sequence[bytes | None],
        labels: Sequence[int],
        *,
        columns: tuple[str, str] = ("image", "label"),
        rows_per_group: int = 4,
    ) -> None:
        structs = [None if image is None else {"bytes": image, "path": None} for image in images]
        kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        table = pa.table({columns[0]: pa.array(structs, kind), columns[1]: list(labels)})
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path, row_group_size=rows_per_group)

    return write


@pytest.fixture
def folder_tree(tmp_path: Path) -> Path:
    """A tree of three classes: 4 training and 2 validation JPEGs each, of odd sizes."""
    root = tmp_path / "tree"
    for split, num in (("train", 4), ("val", 2)):
        for label, name in enumerate(["ant", "bee", "cat"]):
            folder = root / split / name
            folder.mkdir(parents=True)
            for i in range(num):
                seed = 100 * label + i
                image = noise_image(seed, width=40 + 7 * i, height=60 - 5 * label)
                (folder / f"{i}.JPEG").write_bytes(encoded(image, "JPEG"))
    return root
