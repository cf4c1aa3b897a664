"""Handwritten digits: 1,797 real 8x8 images; an epoch consists of random affine views of them."""

import importlib.util
import math
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from lightning_modules.data.randomness import example_uniforms
from lightning_modules.data.shared import shared_array

_NUM_FOLDS = 5
_FILE = "datasets/data/digits.csv.gz"  # of scikit-learn, whose load_digits reads it too
_LEVELS = 16  # each pixel counts 0 to 16 dark pixels of 4x4
_MEAN, _STD = 0.305, 0.376  # of all pixels, as fractions of full darkness
_MAX_ROTATION = math.radians(15)
_MAX_SHIFT = 1 / 8  # a pixel of eight
_MAX_LOG_SCALE = math.log(1.15)
_MAX_SHEAR = 0.15


class Digits:
    """scikit-learn's digits; a fifth held out for validation, untouched.

    View ``i`` of an epoch shows training image ``i % 1437`` under a rotation, shift, scaling and
    shear that are functions of (seed, epoch, i). Shapes: images (n, 1, 8, 8), labels (n,).
    An epoch has `num_train_examples` views; `validation_fold` says which fifth is held out, 0 to 4.

    Raises:
        ValueError: if the fold does not exist or does not hold num_val_examples images.
    """

    input_shape = (1, 8, 8)
    num_classes = 10

    def __init__(
        self, *, num_train_examples: int, num_val_examples: int, validation_fold: int
    ) -> None:
        if validation_fold not in range(_NUM_FOLDS):
            msg = f"data.validation_fold must be 0 to {_NUM_FOLDS - 1}; got {validation_fold=}."
            raise ValueError(msg)
        # read from the file: importing scikit-learn, and so pandas, costs each process a second
        package = importlib.util.find_spec("sklearn")
        assert package is not None, "a dependency"
        assert package.origin is not None, "a package in files"
        table = np.loadtxt(Path(package.origin).parent / _FILE, delimiter=",", dtype=np.float32)
        images, labels = table[:, :-1].reshape(-1, 8, 8), table[:, -1].astype(np.int64)
        held_out = np.arange(len(images)) % _NUM_FOLDS == validation_fold
        if held_out.sum() != num_val_examples:
            msg = (
                "data.num_val_examples must be the size of the fold; "
                f"got {num_val_examples=}, fold {validation_fold} holds {held_out.sum()} images."
            )
            raise ValueError(msg)
        self.num_train_examples, self.num_val_examples = num_train_examples, num_val_examples
        self.fold = validation_fold
        self._train = images[~held_out]
        self._val_images = torch.from_numpy(images[held_out] / np.float32(_LEVELS))[:, None]
        self._train_labels = torch.from_numpy(labels[~held_out])
        self._val_labels = torch.from_numpy(labels[held_out])
        self._view_labels = self._train_labels[torch.arange(num_train_examples) % len(self._train)]
        self._views: Tensor | None = None

    def set_epoch(self, seed: int, epoch: int) -> None:
        """Make the views of an epoch ready (61,440 views: about 4 MB, shared by the runs)."""
        key = f"digits-{self.fold}-{self.num_train_examples}-{seed}-{epoch}"
        self._views = torch.from_numpy(shared_array(key, lambda: self._make_views(seed, epoch)))

    def train_examples(self, examples: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and labels of the epoch's views at these positions, shape (n,)."""
        assert self._views is not None
        images = self._views.index_select(0, examples)  # copies whole rows
        return _normalise(images.float().div_(255)), self._view_labels.index_select(0, examples)

    def val_examples(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Inputs and labels of the held-out images from start to stop."""
        return _normalise(self._val_images[start:stop].clone()), self._val_labels[start:stop]

    def _make_views(self, seed: int, epoch: int) -> npt.NDArray[np.uint8]:
        views = np.arange(self.num_train_examples)
        matrices = torch.from_numpy(_affine_matrices(example_uniforms(seed, epoch, views, 6)))
        images = torch.from_numpy(self._train / np.float32(_LEVELS))[:, None]
        source = torch.from_numpy(views % len(self._train))
        all_views = torch.empty(len(views), *self.input_shape, dtype=torch.uint8)
        for part in torch.arange(len(views)).split(4096):  # keeps the working set in the cache
            grid = _grid(matrices[part])
            view = functional.grid_sample(images[source[part]], grid, align_corners=False)
            all_views[part[0] : part[-1] + 1] = view.mul_(255).round_()
        return all_views.numpy()


def _grid(matrices: Tensor) -> Tensor:
    """Like `affine_grid` for 8x8 images, bit for bit but faster; shape (n, 8, 8, 2)."""
    centres = torch.linspace(-1, 1, 8) * 7 / 8  # of the pixels
    by_x, by_y, shift = matrices[..., None, None].unbind(2)
    grid = by_x * centres + by_y * centres[:, None]
    return grid.add_(shift).permute(0, 2, 3, 1)


def _normalise(images: Tensor) -> Tensor:
    return images.sub_(_MEAN).div_(_STD)


def _affine_matrices(uniforms: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
    """Affine matrices, shape (n, 2, 3), from six uniform draws each, shape (n, 6)."""
    angle, shift_x, shift_y, scale_x, scale_y, shear = (uniforms * 2 - 1).T
    cos, sin = np.cos(angle * _MAX_ROTATION), np.sin(angle * _MAX_ROTATION)
    width, height = np.exp(scale_x * _MAX_LOG_SCALE), np.exp(scale_y * _MAX_LOG_SCALE)
    skew = shear * _MAX_SHEAR
    rows = [
        [width * cos, -height * sin + skew * width * cos, 2 * shift_x * _MAX_SHIFT],
        [width * sin, height * cos + skew * width * sin, 2 * shift_y * _MAX_SHIFT],
    ]
    return np.moveaxis(np.array(rows), -1, 0).astype(np.float32)
