"""Logistic regression: a strongly convex loss whose curvatures are known."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from sweeper.spec.values import NotNegative


class LogisticRegression(nn.Module):
    """Mean of ``log(1 + exp(-y a' w))``, and ``penalty |w|**2 / 2``; weights begin at 1.

    Feature ``i`` of ``a`` is the input's, times ``i ** -decay``; ``y`` is 1 for label 1, -1 for 0.
    Curvatures: `penalty`, and up to ``|a|**2 / 4`` more of an example, ``A'A / (4 n)`` of the mean.
    """

    scales: Tensor

    def __init__(
        self, input_shape: tuple[int], num_classes: int, *, decay: float, penalty: NotNegative
    ) -> None:
        super().__init__()
        if num_classes != 2 or len(input_shape) != 1:
            msg = (
                f"model=logistic needs vectors of two classes; got {num_classes=}, {input_shape=}. "
                "Set data.num_classes=2 data.shape=[16]."
            )
            raise ValueError(msg)
        self._penalty = penalty
        self.register_buffer("scales", torch.arange(1.0, input_shape[0] + 1) ** -decay)
        self.weights = nn.Parameter(torch.ones(input_shape))

    def forward(self, inputs: Tensor) -> Tensor:
        """``a' w``, shape (n,), of inputs, shape (n, features)."""
        return (inputs * self.scales) @ self.weights

    def score(self, outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Mean loss with the penalty, and how many are right."""
        loss = functional.softplus((1 - 2 * labels) * outputs).mean()
        right = ((outputs > 0) == (labels == 1)).sum()
        return loss + self._penalty / 2 * self.weights.square().sum(), right
