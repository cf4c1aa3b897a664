"""A small GPT: the next token of a text, from the tokens before it."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from sweeper.spec.values import Count


class GPT(nn.Module):
    """A decoder-only transformer with pre-normalisation and learned positions.

    `input_shape` is the length of a sequence, `num_classes` the number of tokens; the number of
    heads divides the width of embeddings. The parametrisation is the standard one (not muP).

    Raises:
        ValueError: if the number of heads does not divide the width.

    Source:
        Radford et al. 2019, "Language models are unsupervised multitask learners" (GPT-2).
        Differs from it: no dropout, and attention without biases; that of keys has no gradient, so
        Adam would make steps of its rounding error.
    """

    def __init__(
        self, input_shape: tuple[int], num_classes: int, *, width: Count, depth: Count, heads: Count
    ) -> None:
        if width % heads:
            msg = f"model.heads must divide model.width; got {heads=}, {width=}. Change one."
            raise ValueError(msg)
        super().__init__()
        self.tokens = nn.Embedding(num_classes, width)
        self.positions = nn.Parameter(torch.empty(input_shape[0], width))
        self.layers = nn.Sequential(*(_Layer(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                is_added = name.endswith("out.weight")  # to the residual stream
                nn.init.normal_(parameter, std=0.02 / (2 * depth) ** 0.5 if is_added else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits, shape (n, length, num_classes), of tokens, shape (n, length)."""
        hidden = self.tokens(tokens) + self.positions[: tokens.shape[1]]
        return functional.linear(self.norm(self.layers(hidden)), self.tokens.weight)


class _Layer(nn.Module):
    """Attention to what came before, then two dense layers, each added to its input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention, self.feed_forward = _Attention(width, heads), _FeedForward(width)
        self.attention_norm, self.feed_forward_norm = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, hidden: Tensor) -> Tensor:
        """Shape (n, length, width), in and out."""
        hidden = hidden + self.attention(self.attention_norm(hidden))
        return hidden + self.feed_forward(self.feed_forward_norm(hidden))


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        num, length, width = hidden.shape
        qkv = self.qkv(hidden).view(num, length, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(num, length, width))


class _FeedForward(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Linear(width, 4 * width)
        self.out = nn.Linear(4 * width, width)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.out(functional.gelu(self.inner(hidden)))
