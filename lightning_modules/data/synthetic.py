"""Made-up data of any shape and size: for throughput, and for theory."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from lightning_modules.data.randomness import example_uniforms
from lightning_modules.process.device import copy_async
from sweeper.spec.values import Count


class RandomImages:
    """A few random examples, repeated: as fast as memory, for measuring the speed of training.

    Example ``i`` shows example ``i % distinct``. Inputs are standard normal, shape (n, *shape);
    labels are ``i % distinct % num_classes``, shape (n,).
    """

    def __init__(
        self,
        *,
        shape: Sequence[Count],
        num_classes: Count,
        num_train_examples: int,
        num_val_examples: int,
        distinct: Count,
    ) -> None:
        self.input_shape = tuple(shape)
        self.num_classes = num_classes
        self.num_train_examples = num_train_examples
        self.num_val_examples = num_val_examples
        generator = torch.Generator().manual_seed(0)
        self._inputs = torch.randn(distinct, *shape, generator=generator)
        self._labels = torch.arange(distinct) % num_classes

    def settle(self, device: torch.device, *, ranks_on_node: int) -> None:
        """Move the inputs to the device that trains."""
        del ranks_on_node
        self._inputs, self._labels = self._inputs.to(device), self._labels.to(device)

    def set_epoch(self, seed: int, epoch: int) -> None:
        """Nothing changes between epochs."""

    def train_examples(self, examples: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and labels at these positions, shape (n,)."""
        chosen = copy_async(examples % len(self._inputs), self._inputs.device)
        return self._inputs[chosen], self._labels[chosen]

    def val_examples(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Inputs and labels of the validation set from start to stop."""
        return self.train_examples(torch.arange(start, stop))


class GaussianNoise:
    """Independent standard normal vectors, new in each epoch: examples for theory.

    Labels are zeros, shape (n,); the validation set is a vector of zeros.
    """

    num_classes = 1
    num_val_examples = 1

    def __init__(self, *, length: Count, num_train_examples: int) -> None:
        self.input_shape = (length,)
        self.num_train_examples = num_train_examples
        self._seed, self._epoch = 0, 0

    def set_epoch(self, seed: int, epoch: int) -> None:
        """Choose the noise of a 0-based epoch."""
        self._seed, self._epoch = seed, epoch

    def train_examples(self, examples: Tensor) -> tuple[Tensor, Tensor]:
        """Vectors at these positions, shape (n, length), and zeros, shape (n,)."""
        length = self.input_shape[0]
        pairs = -(-length // 2)
        draws = example_uniforms(self._seed, self._epoch, examples.numpy(), 2 * pairs)
        # Box & Muller 1958: two uniform draws make two independent normal draws.
        radius = np.sqrt(-2 * np.log1p(-draws[:, :pairs]))
        angle = 2 * math.pi * draws[:, pairs:]
        normal = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
        labels = torch.zeros(len(examples), dtype=torch.int64)
        return torch.from_numpy(normal[:, :length]).float(), labels

    def val_examples(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Zeros."""
        zeros = torch.zeros(stop - start, *self.input_shape)
        return zeros, torch.zeros(stop - start, dtype=torch.int64)
