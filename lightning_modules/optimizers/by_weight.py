"""Optimizers that change a weight at a time."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class ByWeight(Optimizer):
    """Counts the `steps` of its groups, and changes each weight that has a gradient."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One optimizer step; the closure, if any, computes the gradients first."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            if weights := [weight for weight in group["params"] if weight.grad is not None]:
                group["steps"] += 1
                for weight in weights:
                    self._update(weight, weight.grad, group)
        return loss

    @abstractmethod
    def _update(self, weight: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        """Change a weight."""
