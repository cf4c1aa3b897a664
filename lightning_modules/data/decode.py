"""Encoded images to pixels; a file that cannot be decoded is named."""

import io
import warnings
from collections.abc import Callable

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.io import ImageReadMode, decode_image

_MODES = {1: ImageReadMode.GRAY, 3: ImageReadMode.RGB}
_PIL_MODES = {1: "L", 3: "RGB"}


def decoded(encoded: bytes, *, channels: int, name: Callable[[], str]) -> Tensor:
    """Pixels of one encoded image, shape (channels, height, width), uint8.

    torchvision's decoder is the faster one; Pillow reads the formats that it does not know.

    Args:
        encoded: the bytes of a JPEG, PNG or any other image file.
        channels: 1 for grey, 3 for RGB; other images are converted [count].
        name: says where the bytes come from, for the error.

    Raises:
        ValueError: if the bytes are no whole image.
    """
    try:
        with warnings.catch_warnings():  # frombuffer: these bytes are only read
            warnings.simplefilter("ignore", UserWarning)
            buffer = torch.frombuffer(encoded, dtype=torch.uint8)
        return decode_image(buffer, _MODES[channels])
    except (RuntimeError, ValueError):
        return _decoded_by_pillow(encoded, channels=channels, name=name)


def _decoded_by_pillow(encoded: bytes, *, channels: int, name: Callable[[], str]) -> Tensor:
    try:
        with Image.open(io.BytesIO(encoded)) as image:
            pixels = np.array(image.convert(_PIL_MODES[channels]))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        msg = (
            f"every image must be a whole image file; {name()} cannot be decoded ({error}). "
            "Replace the file or remove it, and state the new number of examples."
        )
        raise ValueError(msg) from error
    return torch.from_numpy(pixels.reshape(*pixels.shape[:2], channels)).permute(2, 0, 1)
