"""A text as sequences of tokens, to predict each from those before it, or masked ones."""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lightning_modules.data.batch_counts import IGNORED
from lightning_modules.data.image_files import check_count
from lightning_modules.data.randomness import VALIDATION, example_uniforms
from lightning_modules.data.tokens import embedded_version, load_tokens
from sweeper.spec.values import Count


class TextTokens:
    """Consecutive sequences of a text's tokens; the last are for validation.

    Sequence ``i`` is tokens ``i * length`` to ``(i + 1) * length``; its labels are the same,
    shifted by a token. Shapes: inputs and labels (n, length). The first `num_train_examples` are
    trained on. Tokens after the last whole sequence are not used.

    With `masked`, that part of each sequence's tokens is to be predicted from the others: see
    `mask_tokens`. Which, is a function of (seed, epoch, sequence); in validation, of the sequence.

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
        masked: float = 0.0,
    ) -> None:
        if root is None and version != (found := embedded_version()):
            msg = (
                f"data.version must be that of this Python's own sources, {found}; got {version}. "
                "Use the Python that planned the run, or a text file: data=text."
            )
            raise ValueError(msg)
        self.input_shape, self.num_classes = (length,), vocabulary + bool(masked)
        #: Of each sequence [tokens].
        self.num_masked = max(1, round(masked * length)) if masked else 0
        self._seed = self._epoch = 0
        self.num_train_examples = num_train_examples
        self.num_val_examples = num_val_examples
        self._tokens = load_tokens(root, vocabulary)
        sequences = max(0, len(self._tokens) - 1) // length
        self._first_val = sequences - num_val_examples
        most = min(self._first_val, num_train_examples)
        check_count("num_train_examples", num_train_examples, most, root or name)

    def set_epoch(self, seed: int, epoch: int) -> None:
        """Nothing changes between epochs but the order, and which tokens are masked."""
        self._seed, self._epoch = seed, epoch

    def train_examples(self, examples: Tensor) -> tuple[Tensor, Tensor]:
        """Sequences at these positions, and what to predict at each token, shape (n, length)."""
        return self._read(examples, self._seed, self._epoch)

    def val_examples(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Sequences of the validation part from start to stop."""
        return self._read(self._first_val + torch.arange(start, stop), 0, VALIDATION)

    def _read(self, examples: Tensor, seed: int, epoch: int) -> tuple[Tensor, Tensor]:
        length = self.input_shape[0]
        indices = examples.numpy()[:, None] * length + np.arange(length + 1)
        tokens = torch.from_numpy(self._tokens[indices].astype(np.int64))
        if not self.num_masked:
            return tokens[:, :-1], tokens[:, 1:]
        draws = example_uniforms(seed, epoch, examples.numpy(), 2 * length)
        return mask_tokens(tokens[:, :-1], draws, num=self.num_masked, mask=self.num_classes - 1)


def mask_tokens(
    tokens: Tensor, draws: npt.NDArray[np.float64], *, num: int, mask: int
) -> tuple[Tensor, Tensor]:
    """Sequences with `num` tokens of each masked, and labels: these tokens, elsewhere -100.

    80 % of them become `mask`, the number after the last token's, 10 % a random token, and 10 %
    stay. Each sequence has as many, so the mean over the sequences of a batch is the one over its
    masked tokens, in any micro-batches. Draws are uniform in [0, 1), shape (n, 2 * length).

    Source:
        Devlin et al. 2018, arXiv:1810.04805, section 3.1.
    """
    order, kinds = torch.from_numpy(draws).chunk(2, dim=1)
    is_masked = torch.zeros_like(tokens, dtype=torch.bool)
    is_masked.scatter_(1, order.topk(num, dim=1).indices, value=True)
    random = ((kinds - 0.8) * 10 * mask).long().clamp(0, mask - 1)
    changed = torch.where(kinds < 0.8, mask, torch.where(kinds < 0.9, random, tokens))
    return torch.where(is_masked, changed, tokens), torch.where(is_masked, tokens, IGNORED)
