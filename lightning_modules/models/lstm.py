"""An LSTM: the next token of a text, from the tokens before it."""

from torch import Tensor, nn


class LSTM(nn.Module):
    """Layers of torch's own LSTM on embeddings; the state is zero at the start of each sequence.

    `num_classes` is the number of tokens. Dropout, of what enters a layer or the last dense one, is
    in layers of its own: torch's LSTM would draw for a whole micro-batch.

    Source:
        Zaremba et al. 2014, arXiv:1409.2329; there the state goes on to the following sequence.
    """

    def __init__(
        self, input_shape: tuple[int], num_classes: int, *, width: int, depth: int, dropout: float
    ) -> None:
        del input_shape
        super().__init__()
        self.tokens = nn.Embedding(num_classes, width)
        self.layers = nn.Sequential(*(_Layer(width, dropout) for _ in range(depth)))
        self.out = nn.Sequential(nn.Dropout(dropout), nn.Linear(width, num_classes))

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits, shape (n, length, num_classes), of tokens, shape (n, length)."""
        return self.out(self.layers(self.tokens(tokens)))


class _Layer(nn.Module):
    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.lstm = nn.LSTM(width, width, batch_first=True)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.lstm(self.dropout(hidden))[0]
