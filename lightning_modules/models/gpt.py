"""A GPT: the next token of a text, from the tokens before it."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from sweeper.spec.method_checks import check_heads
from sweeper.spec.values import Count

_ROTARY_BASE = 10_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Form:
    """What GPTs differ in besides their sizes, as the settings of `GPT` say."""

    norm: Literal["layer", "rms"]
    positions: Literal["learned", "rotary"]
    feed_forward: Literal["gelu", "swiglu"]
    bias: bool
    qk_norm: bool
    is_causal: bool

    def build_norm(self, width: int) -> nn.Module:
        """A norm over the last dimension."""
        if self.norm == "rms":
            return nn.RMSNorm(width, eps=1e-6)
        return nn.LayerNorm(width, bias=self.bias)


class GPT(nn.Module):
    """A decoder-only transformer with pre-normalisation; by default GPT-2 with learned positions.

    `input_shape` is the length of a sequence, `num_classes` the number of tokens; the number of
    heads divides the width of embeddings, into an even number for rotary positions. The
    parametrisation is the standard one (not muP). `bias` is that of LayerNorm and the dense layers;
    `qk_norm` normalises queries and keys of each head by RMSNorm; SwiGLU has 8/3 of the width.
    Unless `causal`, tokens also see those after them, as in BERT.

    Raises:
        ValueError: if the number of heads does not divide the width so.

    Source:
        Radford et al. 2019, "Language models are unsupervised multitask learners" (GPT-2).
        Differs from it: no dropout, and attention without biases; that of keys has no gradient, so
        Adam would make steps of its rounding error. Zhang & Sennrich 2019, arXiv:1910.07467
        (RMSNorm); Su et al. 2021, arXiv:2104.09864 (rotary positions, here of halves of a head);
        Shazeer 2020, arXiv:2002.05202 (SwiGLU); Dehghani et al. 2023, arXiv:2302.05442 (QK norm).
    """

    def __init__(  # noqa: PLR0913  its settings
        self,
        input_shape: tuple[int],
        num_classes: int,
        *,
        width: Count,
        depth: Count,
        heads: Count,
        norm: Literal["layer", "rms"] = "layer",
        positions: Literal["learned", "rotary"] = "learned",
        feed_forward: Literal["gelu", "swiglu"] = "gelu",
        bias: bool = True,
        qk_norm: bool = False,
        causal: bool = True,
    ) -> None:
        check_heads(width=width, heads=heads, is_rotary=positions == "rotary")
        super().__init__()
        form = _Form(
            norm=norm,
            positions=positions,
            feed_forward=feed_forward,
            bias=bias,
            qk_norm=qk_norm,
            is_causal=causal,
        )
        self.tokens = nn.Embedding(num_classes, width)
        if positions == "learned":
            self.positions = nn.Parameter(torch.empty(input_shape[0], width))
        self.layers = nn.Sequential(*(_Layer(width, heads, form) for _ in range(depth)))
        self.norm = form.build_norm(width)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                is_added = name.endswith("out.weight")  # to the residual stream
                nn.init.normal_(parameter, std=0.02 / (2 * depth) ** 0.5 if is_added else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits, shape (n, length, num_classes), of tokens, shape (n, length)."""
        hidden = self.tokens(tokens)
        if hasattr(self, "positions"):
            hidden = hidden + self.positions[: tokens.shape[1]]
        return functional.linear(self.norm(self.layers(hidden)), self.tokens.weight)


class _Layer(nn.Module):
    """Attention, then dense layers, each added to its input."""

    def __init__(self, width: int, heads: int, form: _Form) -> None:
        super().__init__()
        self.attention = _Attention(width, heads, form)
        self.feed_forward = (_SwiGLU if form.feed_forward == "swiglu" else _FeedForward)(
            width, bias=form.bias
        )
        self.attention_norm, self.feed_forward_norm = form.build_norm(width), form.build_norm(width)

    def forward(self, hidden: Tensor) -> Tensor:
        """Shape (n, length, width), in and out."""
        hidden = hidden + self.attention(self.attention_norm(hidden))
        return hidden + self.feed_forward(self.feed_forward_norm(hidden))


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int, form: _Form) -> None:
        super().__init__()
        self.heads, self.is_rotary = heads, form.positions == "rotary"
        self.is_causal = form.is_causal
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        if form.qk_norm:
            self.query_norm, self.key_norm = (
                nn.RMSNorm(width // heads, eps=1e-6) for _ in range(2)
            )

    def forward(self, hidden: Tensor) -> Tensor:
        num, length, width = hidden.shape
        qkv = self.qkv(hidden).view(num, length, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        if hasattr(self, "query_norm"):
            query, key = self.query_norm(query), self.key_norm(key)
        if self.is_rotary:
            query, key = _rotate(query), _rotate(key)
        mixed = functional.scaled_dot_product_attention(
            query.type_as(value), key.type_as(value), value, is_causal=self.is_causal
        )
        return self.out(mixed.transpose(1, 2).reshape(num, length, width))


def _rotate(heads: Tensor) -> Tensor:
    """Pairs of coordinates turned by angles that grow with the position, shape (..., length, d).

    Coordinate ``i`` of the first half and of the second are a pair; that of position ``t`` is
    turned by ``t / 10000^(2 i / d)``.
    """
    length, size = heads.shape[-2:]
    kind = torch.promote_types(heads.dtype, torch.float32)
    pairs = torch.arange(size // 2, device=heads.device, dtype=kind)
    positions = torch.arange(length, device=heads.device, dtype=kind)
    angles = positions[:, None] * _ROTARY_BASE ** (-2 * pairs / size)
    first, second = heads.chunk(2, dim=-1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class _FeedForward(nn.Module):
    def __init__(self, width: int, *, bias: bool) -> None:
        super().__init__()
        self.inner = nn.Linear(width, 4 * width, bias=bias)
        self.out = nn.Linear(4 * width, width, bias=bias)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.out(functional.gelu(self.inner(hidden)))


class _SwiGLU(nn.Module):
    def __init__(self, width: int, *, bias: bool) -> None:
        super().__init__()
        inner = 8 * width // 3
        self.inner = nn.Linear(width, 2 * inner, bias=bias)
        self.out = nn.Linear(inner, width, bias=bias)

    def forward(self, hidden: Tensor) -> Tensor:
        gate, value = self.inner(hidden).chunk(2, dim=-1)
        return self.out(functional.silu(gate) * value)
