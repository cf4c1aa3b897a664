"""Images made for the tests."""

import io

import numpy as np
from PIL import Image


def noise_image(seed: int, *, width: int, height: int) -> Image.Image:
    """An image of random pixels."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def encoded(image: Image.Image, kind: str) -> bytes:
    """The bytes of an image file: JPEG or PNG."""
    buffer = io.BytesIO()
    image.save(buffer, kind)
    return buffer.getvalue()
