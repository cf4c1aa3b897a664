"""Post-local SGD: ranks step on their own for a while, then average their weights."""

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.futures import Future

from lightning_modules.gradients.flat_weights import flattened, set_weights
from sweeper.spec.run_spec import RunSpec


class LocalSteps:
    """When ranks exchange gradients, and when weights instead.

    With one local step it is plain data parallelism for SGD, momentum included: the mean of equal
    weights' updates is the update by the mean gradient.

    Args:
        local_steps: steps between averages of the weights [steps].
        start_epoch: gradients are exchanged before [epochs].
        steps_per_epoch: optimizer steps per epoch [steps].

    Source:
        Lin et al. 2018, arXiv:1808.07217.
    """

    def __init__(self, *, local_steps: int, start_epoch: float, steps_per_epoch: int) -> None:
        self._local_steps = local_steps
        self._start_step = math.ceil(start_epoch * steps_per_epoch)
        self.steps_taken = 0

    @property
    def is_local(self) -> bool:
        """Whether the step to come uses each rank's own gradient."""
        return self.steps_taken >= self._start_step

    @property
    def is_agreed(self) -> bool:
        """Whether all ranks have the same weights, after the last step."""
        return not self.is_local or (self.steps_taken - self._start_step) % self._local_steps == 0

    def exchange(self, bucket: GradBucket) -> Future[Tensor]:
        """DDP's exchange of a bucket of gradients: their mean, or nothing."""
        if not self.is_local:
            group: Any = dist.group.WORLD
            return default_hooks.allreduce_hook(group, bucket)
        return left_alone(bucket)

    def after_step(self, model: nn.Module) -> None:
        """Count a step, and average the weights if it is time."""
        was_local = self.is_local
        self.steps_taken += 1
        if was_local and self.is_agreed:
            average_weights(model)


def local_steps(spec: RunSpec) -> LocalSteps | None:
    """The local steps that a run is to take; None if it exchanges gradients at every step."""
    comm_hook = spec.config["comm_hook"]
    if comm_hook["name"] != "post_local_sgd":
        return None
    return LocalSteps(
        local_steps=comm_hook["local_steps"],
        start_epoch=comm_hook["start_epoch"],
        steps_per_epoch=spec.steps_per_epoch,
    )


def left_alone(bucket: GradBucket) -> Future[Tensor]:
    """DDP's exchange of a bucket of gradients without any: each rank keeps its own."""
    future: Future[Tensor] = Future()
    future.set_result(bucket.buffer())
    return future


@torch.no_grad()
def average_weights(model: nn.Module) -> None:
    """Set the weights of all ranks to their mean."""
    weights = flattened(model)
    dist.all_reduce(weights)
    set_weights(model, weights.div_(dist.get_world_size()))
