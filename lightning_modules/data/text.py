"""A text file as sequences of bytes, to predict each byte from those before it."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lightning_modules.data.on_disk import check_count
from sweeper.spec.values import Count


class TextBytes:
    """Consecutive sequences of a text's bytes; the last are for validation.

    Sequence ``i`` is bytes ``i * length`` to ``(i + 1) * length``; its labels are the same, shifted
    by a byte. Shapes: inputs and labels (n, length). Bytes after the last whole sequence are not
    used.

    The name is part of a run's identity, the path is not. The length is in bytes,
    `num_train_examples` and `num_val_examples` are in sequences; the first is checked.

    Raises:
        ValueError: if there is no such file, or it does not hold this many sequences.
    """

    num_classes = 256

    def __init__(
        self, *, name: str, root: str, length: Count, num_train_examples: int, num_val_examples: int
    ) -> None:
        del name
        if not Path(root).is_file():
            msg = f"data.root must be a text file; got data.root={root}, which does not exist."
            raise ValueError(msg)
        self.input_shape = (length,)
        self.num_train_examples = num_train_examples
        self.num_val_examples = num_val_examples
        self._bytes = np.fromfile(root, dtype=np.uint8)
        sequences = max(0, len(self._bytes) - 1) // length
        check_count("num_train_examples", num_train_examples, sequences - num_val_examples, root)

    def set_epoch(self, seed: int, epoch: int) -> None:
        """Nothing changes between epochs but the order."""

    def train_examples(self, examples: Tensor) -> tuple[Tensor, Tensor]:
        """Sequences at these positions, and the same shifted by a byte, shape (n, length)."""
        length = self.input_shape[0]
        indices = examples.numpy()[:, None] * length + np.arange(length + 1)
        symbols = torch.from_numpy(self._bytes[indices].astype(np.int64))
        return symbols[:, :-1], symbols[:, 1:]

    def val_examples(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Sequences of the validation part from start to stop."""
        return self.train_examples(self.num_train_examples + torch.arange(start, stop))
