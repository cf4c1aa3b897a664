"""CIFAR-10 at half resolution: each 2 x 2 pixels averaged, in parquet as before.

    python examples/warmup/half_resolution.py CIFAR10 data/cifar10_half

CIFAR10 is a folder with train*.parquet and test*.parquet in Hugging Face's layout.
"""

import io
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image


def main(source: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.glob("*.parquet")):
        table = pq.read_table(path)
        images = table.column_names.index("img")
        halved = [{"bytes": half(one["bytes"]), "path": None} for one in table["img"].to_pylist()]
        column = pa.array(halved, type=table.schema.field(images).type)
        pq.write_table(table.set_column(images, "img", column), target / path.name)


def half(encoded: bytes) -> bytes:
    """An image of half the width and height, as PNG."""
    pixels = np.asarray(Image.open(io.BytesIO(encoded)).convert("RGB"), dtype=np.uint16)
    height, width, channels = pixels.shape
    blocks = pixels.reshape(height // 2, 2, width // 2, 2, channels)
    small = ((blocks.sum(axis=(1, 3)) + 2) // 4).astype(np.uint8)
    found = io.BytesIO()
    Image.fromarray(small).save(found, "PNG")
    return found.getvalue()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
