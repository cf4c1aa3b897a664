"""A text as sequences of tokens, to predict each token from those before it."""

import numpy as np
import torch
from torch import Tensor

from lightning_modules.data.image_files import check_count
from lightning_modules.data.tokens import embedded_version, load_tokens
from sweeper.spec.values import Count


class TextTokens:
    """Consecutive sequences of a text's tokens; the last are for validation.

    Sequence ``i`` is tokens ``i * length`` to ``(i + 1) * length``; its labels are the same,
    shifted by a token. Shapes: inputs and labels (n, length). The first `num_train_examples` are
    trained on. Tokens after the last whole sequence are not used.

    The name and the embedded text's version are part of a run's identity, the path is not. The
    length is in tokens, `num_train_examples` and `num_val_examples` are in sequences; the version
    and `num_train_examples` are checked.

    Raises:
        ValueError: if there is no such text, it has another version, or it does not hold this many
            sequences.
    """

    def __init__(
        self,
        *,
        name: str,
        root: str | None,
        vocabulary: Count,
        length: Count,
        num_train_examples: int,
        num_val_examples: int,
        version: str | None = None,
    ) -> None:
        if root is None and version != (found := embedded_version()):
            msg = (
                f"data.version must be that of this Python's own sources, {found}; got {version}. "
                "Use the Python that planned the run, or a text file: data=text."
            )
            raise ValueError(msg)
        self.input_shape, self.num_classes = (length,), vocabulary
        self.num_train_examples = num_train_examples
        self.num_val_examples = num_val_examples
        self._tokens = load_tokens(root, vocabulary)
        sequences = max(0, len(self._tokens) - 1) // length
        self._first_val = sequences - num_val_examples
        most = min(self._first_val, num_train_examples)
        check_count("num_train_examples", num_train_examples, most, root or name)

    def set_epoch(self, seed: int, epoch: int) -> None:
        """Nothing changes between epochs but the order."""

    def train_examples(self, examples: Tensor) -> tuple[Tensor, Tensor]:
        """Sequences at these positions, and the same shifted by a token, shape (n, length)."""
        length = self.input_shape[0]
        indices = examples.numpy()[:, None] * length + np.arange(length + 1)
        tokens = torch.from_numpy(self._tokens[indices].astype(np.int64))
        return tokens[:, :-1], tokens[:, 1:]

    def val_examples(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Sequences of the validation part from start to stop."""
        return self.train_examples(self._first_val + torch.arange(start, stop))
