"""Statistics of each micro-batch's own gradient, summed over micro-batches and ranks."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node, get_gradient_edge

from lightning_modules.process.world import all_reduce_list, num_ranks
from sweeper.upstream.torchs import foreach_mul

#: A function of a parameter's gradient in a micro-batch, quadratic in that gradient.
Statistic = Callable[[Tensor], Tensor]


class MicroGradients:
    """Means of a statistic over all micro-batches of an optimizer step, on all ranks.

    Autograd hands over each micro-batch's gradient on its way into ``.grad``, before accumulation
    and before ranks exchange anything; gradients that go elsewhere, such as those SAM climbs along,
    are not seen. All parameters' sums are exchanged in a single all-reduce.
    """

    def __init__(self, statistic: Statistic) -> None:
        self._statistic = statistic
        self._sums: dict[Tensor, Tensor] = {}
        self._counts: dict[Tensor, int] = {}
        self._accumulation_steps: Callable[[], int] = lambda: 1
        self._loss_scale: Callable[[], float] = lambda: 1.0
        self._nodes: list[Node] = []

    def watch(
        self,
        parameters: Iterable[nn.Parameter],
        *,
        accumulation_steps: Callable[[], int],
        loss_scale: Callable[[], float],
    ) -> None:
        """Watch every gradient of these parameters from now on.

        Both functions are called at each use: `accumulation_steps` gives the micro-batches per rank
        per step, by which Lightning divides losses; `loss_scale` what losses are multiplied by (1
        except with 16-mixed).
        """
        self._accumulation_steps, self._loss_scale = accumulation_steps, loss_scale
        for parameter in parameters:
            if parameter.requires_grad:
                node = get_gradient_edge(parameter).node
                node.register_prehook(partial(self._on_backward, parameter))
                self._nodes.append(node)  # a parameter itself does not keep its node

    def means(self, parameters: Sequence[Tensor]) -> list[Tensor]:
        """Average over all micro-batches of this optimizer step and start the sums of the next.

        Raises:
            ValueError: if there is a single micro-batch, which has nothing to be compared with.
        """
        world_size = num_ranks()
        count = max(self._counts.values(), default=0) * world_size
        if count == 1:
            msg = (
                "methods that compare micro-batches need at least two in each global batch; got "
                "one. Lower optimizer.gradient_span or noise_span, or raise batch."
            )
            raise ValueError(msg)
        # A parameter that no micro-batch has used has a gradient of zero.
        sums = [
            self._sums[p] if p in self._counts else self._statistic(torch.zeros_like(p))
            for p in parameters
        ]
        if world_size > 1:
            sums = all_reduce_list(sums)
        self._counts.clear()
        scale = self._accumulation_steps() / self._loss_scale()
        return list(foreach_mul(sums, scale**2 / count))

    def _on_backward(self, parameter: Tensor, gradients: tuple[Tensor, ...]) -> None:
        """Add the statistic of a micro-batch's gradient."""
        value = self._statistic(gradients[0].detach())
        count = self._counts.get(parameter, 0)
        if count in {0, self._accumulation_steps()}:  # all: the loss scaler skipped that step
            self._sums[parameter], count = value, 0
        else:
            self._sums[parameter] += value
        self._counts[parameter] = count + 1
