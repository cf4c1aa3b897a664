"""Statistics of each micro-batch's own gradient, summed over micro-batches and ranks."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from pytorch_lightning import Trainer
from torch import Tensor, nn
from torch.autograd.graph import Node, get_gradient_edge

from lightning_modules.process.shards import call_with_leaves, shard_like
from lightning_modules.process.world import all_reduce_list, num_ranks

#: A function of a parameter's gradient in a micro-batch.
Statistic = Callable[[Tensor], Tensor]


class MicroGradients:
    """Means of a statistic over all micro-batches of an optimizer step, on all ranks.

    Autograd hands over each micro-batch's gradient on its way into ``.grad``, before accumulation
    and before ranks exchange anything; gradients that go elsewhere, such as those SAM climbs along,
    are not seen. All parameters' sums are exchanged in a single all-reduce.

    Args:
        statistic: of a gradient.
        degree: its degree in the gradient: 1 for a norm, 2 for a square.
    """

    def __init__(self, statistic: Statistic, *, degree: int = 2) -> None:
        self._statistic, self._degree = statistic, degree
        self._sums: dict[Tensor, Tensor] = {}
        self._counts: dict[Tensor, int] = {}
        self._nodes: list[Node] = []

    def watch(self, module: nn.Module, trainer: Trainer) -> None:
        """Watch every gradient of a module's parameters from now on."""
        self._trainer = trainer

        def watch_leaf(parameter: nn.Parameter, leaf: nn.Parameter) -> None:
            node = get_gradient_edge(leaf).node
            node.register_prehook(partial(self._on_backward, parameter))
            self._nodes.append(node)  # a leaf itself does not keep its node

        call_with_leaves(module, watch_leaf)

    def means(self, parameters: Sequence[Tensor]) -> list[Tensor]:
        """Average over all micro-batches of this optimizer step and start the sums of the next."""
        world_size = num_ranks()
        count = max(self._counts.values(), default=0) * world_size
        # A parameter that no micro-batch has used has a gradient of zero.
        sums = [
            self._sums[p]
            if p in self._counts
            else self._statistic(torch.zeros(p.shape, dtype=p.dtype, device=p.device))
            for p in parameters
        ]
        if world_size > 1:
            sums = all_reduce_list(sums)
        self._counts.clear()
        # Lightning divided the losses by the micro-batches of a step.
        scale = self._trainer.accumulate_grad_batches / loss_scale(self._trainer)
        means = [total * (scale**self._degree / count) for total in sums]
        return [shard_like(p, mean) for p, mean in zip(parameters, means, strict=True)]

    def _on_backward(self, parameter: Tensor, gradients: tuple[Tensor, ...]) -> None:
        """Add the statistic of a micro-batch's gradient."""
        value = self._statistic(gradients[0].detach())
        count = self._counts.get(parameter, 0)
        if count in {0, self._trainer.accumulate_grad_batches}:  # all: that step was skipped
            self._sums[parameter], count = value, 0
        else:
            self._sums[parameter] += value
        self._counts[parameter] = count + 1


def loss_scale(trainer: Trainer) -> float:
    """What losses are multiplied by now: 1 except with 16-mixed."""
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    return scaler.get_scale() if scaler is not None else 1.0
