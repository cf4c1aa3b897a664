"""The loop that our optimizers share: groups in, one multi-tensor update each."""

# torch has no public names for its multi-tensor operations.
# pyright: reportPrivateUsage=false

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from lightning_modules.optimizers.micro_gradients import MicroGradients


class ForeachOptimizer(Optimizer, ABC):
    """An optimizer that updates all parameters of a group at once.

    A group's `adapt` says whether its layers get their own rates (trust ratios); biases and norms
    can be left out (parameter_groups.py). Momentum is ``v <- momentum v + direction`` and
    ``w <- w - lr v`` throughout: the learning rate stands outside of the buffer, so a change of
    rate needs no momentum correction (Goyal et al. 2017, section 3).

    Attributes:
        micro_gradients: what is wanted of each micro-batch's own gradient, or None.
    """

    micro_gradients: MicroGradients | None = None

    def __init__(self, parameters: Any, **settings: Any) -> None:
        super().__init__(parameters, {"adapt": True, **settings})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One optimizer step; the closure, if any, computes the gradients first."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self.micro_gradients is not None:
            self.micro_gradients.gather(
                [p for group in self.param_groups for p in _with_gradient(group["params"])]
            )
        for group in self.param_groups:
            if parameters := _with_gradient(group["params"]):
                gradients = [p.grad for p in parameters if p.grad is not None]
                self._update(parameters, gradients, group)
        return loss

    @abstractmethod
    def _update(
        self, parameters: list[Tensor], gradients: list[Tensor], group: dict[str, Any]
    ) -> None:
        """Update the parameters of a group in place; leave the gradients as they are."""

    def _buffers(self, parameters: list[Tensor], name: str) -> list[Tensor]:
        """A state tensor of each parameter, zero at first."""
        for parameter in parameters:
            state = self.state[parameter]
            if name not in state:
                state[name] = torch.zeros_like(parameter)
        return [self.state[parameter][name] for parameter in parameters]


def count_step(group: dict[str, Any]) -> int:
    """The 1-based number of this step; kept in the group, so it is saved with it."""
    group["steps"] = group.get("steps", 0) + 1
    return group["steps"]


def _with_gradient(parameters: list[Tensor]) -> list[Tensor]:
    return [parameter for parameter in parameters if parameter.grad is not None]
