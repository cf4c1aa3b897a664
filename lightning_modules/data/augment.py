"""Images decoded and augmented, each draw a function of (seed, epoch, example)."""

import io
import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional
from torchvision.transforms.v2 import functional as transforms

from lightning_modules.process.device import copy_async

_MODES = {1: "L", 3: "RGB"}


def decode_image(encoded: bytes, *, channels: int, name: Callable[[], str]) -> Tensor:
    """Pixels of an encoded image, shape (channels, height, width), uint8, channels last.

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


_TRIES = 10
_AREA = (0.08, 1.0)
_LOG_RATIO = (math.log(3 / 4), math.log(4 / 3))

#: Uniform draws that `random_resized_crop` needs for each example.
RESIZED_CROP_DRAWS = 2 * _TRIES + 3


def shift_and_flip(images: Tensor, draws: Tensor, *, padding: int, flip: bool) -> Tensor:
    """A random window of each zero-padded image, half of them mirrored left to right.

    Works on all images at once, on the device that they are on.

    Images are of shape (n, height, width, channels), as is the result. Draws are uniform in [0, 1),
    for top, left and mirroring: shape (n, 3), on the CPU. The padding is on each side [pixels].

    Source:
        He et al. 2015, arXiv:1512.03385, section 4.2, with a padding of 4.
    """
    num, height, width, channels = images.shape
    device = images.device
    padded = functional.pad(images, (0, 0, padding, padding, padding, padding))
    row_length, column_length = width + 2 * padding, height + 2 * padding
    shifts = copy_async(
        (draws[:, :2] * (2 * padding + 1)).long(), device
    )  # some devices lack float64
    rows = torch.arange(height, device=device) + shifts[:, :1]
    rows = rows + torch.arange(num, device=device)[:, None] * column_length
    columns = torch.arange(width, device=device)
    if flip:
        columns = torch.where(copy_async(draws[:, 2:] < 1 / 2, device), columns.flip(0), columns)
    columns = columns + shifts[:, 1:]
    pixels = (rows[:, :, None] * row_length + columns[:, None, :]).flatten()
    return padded.view(-1, channels).index_select(0, pixels).view(num, height, width, channels)


def random_resized_crop(image: Tensor, draws: npt.NDArray[np.float64], *, size: int) -> Tensor:
    """A random part of an image at a random aspect ratio, resized; mirrored half of the time.

    The part covers 8 to 100 % of the area at 3/4 to 4/3 of the aspect ratio; after ten tries that
    do not fit, the largest central part within these ratios.

    The image is uint8 of shape (channels, height, width), the result (channels, size, size); draws
    are uniform in [0, 1), shape (RESIZED_CROP_DRAWS,).

    Source:
        Szegedy et al. 2014, arXiv:1409.4842, section 6; as torchvision's RandomResizedCrop.
    """
    height, width = image.shape[-2:]
    top, left, crop_height, crop_width = _choose_part(height, width, draws)
    crop = transforms.resized_crop(
        image, top, left, crop_height, crop_width, [size, size], antialias=True
    )
    return crop.flip(-1) if draws[-1] < 1 / 2 else crop


def central_crop(image: Tensor, *, resize: int, size: int) -> Tensor:
    """The centre of an image whose shorter side was resized: the standard view for evaluation.

    The image is uint8 of shape (channels, height, width); sizes are in pixels.
    """
    return transforms.center_crop(transforms.resize(image, [resize], antialias=True), [size, size])


def _choose_part(
    height: int, width: int, draws: npt.NDArray[np.float64]
) -> tuple[int, int, int, int]:
    areas = height * width * (_AREA[0] + (_AREA[1] - _AREA[0]) * draws[:_TRIES])
    logs = _LOG_RATIO[0] + (_LOG_RATIO[1] - _LOG_RATIO[0]) * draws[_TRIES : 2 * _TRIES]
    ratios = np.exp(logs)
    widths, heights = np.rint(np.sqrt(areas * ratios)), np.rint(np.sqrt(areas / ratios))
    fits = np.flatnonzero((widths > 0) & (widths <= width) & (heights > 0) & (heights <= height))
    if not len(fits):  # the largest central part within the ratios
        low, high = math.exp(_LOG_RATIO[0]), math.exp(_LOG_RATIO[1])
        crop_width, crop_height = min(width, round(height * high)), min(height, round(width / low))
        return (height - crop_height) // 2, (width - crop_width) // 2, crop_height, crop_width
    crop_height, crop_width = int(heights[fits[0]]), int(widths[fits[0]])
    top = int(draws[-3] * (height - crop_height + 1))
    left = int(draws[-2] * (width - crop_width + 1))
    return top, left, crop_height, crop_width
