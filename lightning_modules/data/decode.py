"""Encoded images to pixels; a file that cannot be decoded is named."""

import io
from collections.abc import Callable

import numpy as np
import torch
from PIL import Image
from torch import Tensor

_MODES = {1: "L", 3: "RGB"}


def decoded(encoded: bytes, *, channels: int, name: Callable[[], str]) -> Tensor:
    """Pixels of one encoded image, shape (channels, height, width), uint8, channels last.

    One channel is grey, three are RGB; other images are converted. The name is for the error.

    Raises:
        ValueError: if the bytes are not a complete image.
    """
    try:
        with Image.open(io.BytesIO(encoded)) as image:
            pixels = np.array(image.convert(_MODES[channels]))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        msg = (
            f"every image must be a complete image file; {name()} cannot be decoded ({error}). "
            "Replace the file or remove it, and state the new number of examples."
        )
        raise ValueError(msg) from error
    return torch.from_numpy(pixels.reshape(*pixels.shape[:2], channels)).permute(2, 0, 1)
