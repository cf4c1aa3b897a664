"""Post-local SGD: ranks step on their own for a while, then average their weights."""

import math
from typing import Any

import torch
from pytorch_lightning import LightningModule, Trainer
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import (
    PostLocalSGDState,
    post_localSGD_hook,
)

from lightning_modules.modules.steps import AroundEvaluation, ends_step
from lightning_modules.optimizers.run_strategy import ddp_wrapper
from lightning_modules.process.world import all_reduce_list, gather_states, num_ranks


class PostLocalSGD(AroundEvaluation):
    """Ranks exchange gradients up to a step, and from then on average weights every few steps.

    With a single local step it is plain data parallelism for SGD, momentum included: the mean of
    equal weights' updates is the update by the mean gradient. Gradients go through torch's hook.
    Weights are averaged here: torch's averager averages after the first local step and not after
    the last, and loses the memory format of weights.

    Args:
        local_steps: steps between averages of the weights [steps].
        start_step: gradients are exchanged before this step, rounded up [steps].

    Source:
        Lin et al. 2018, arXiv:1808.07217.
    """

    def __init__(self, *, local_steps: int, start_step: float) -> None:
        self._local_steps, self._start_step = local_steps, math.ceil(start_step)
        self._steps = 0

    @property
    def is_local(self) -> bool:
        """Whether the next step uses each rank's own gradient."""
        return self._steps >= self._start_step

    @property
    def is_agreed(self) -> bool:
        """Whether all ranks have the same weights, after the last step."""
        return not self.is_local or (self._steps - self._start_step) % self._local_steps == 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Have DDP exchange gradients only up to the first local step."""
        state = PostLocalSGDState(
            process_group=None,
            subgroup=None,
            start_localSGD_iter=self._start_step,
            post_local_gradient_allreduce=False,
        )
        state.iter = self._steps = trainer.global_step
        ddp_wrapper(trainer).register_comm_hook(state, post_localSGD_hook)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Average the weights if it is time."""
        if ends_step(trainer, batch_idx):
            was_local, self._steps = self.is_local, trainer.global_step
            if was_local and self.is_agreed:
                average_weights(pl_module)

    def on_steps_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Average the weights before they are evaluated and saved."""
        if self.is_local:
            average_weights(pl_module)

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Save every rank's momentum."""
        checkpoint["optimizers_of_ranks"] = gather_states(checkpoint["optimizer_states"][0])

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Load this rank's momentum."""
        own = checkpoint["optimizers_of_ranks"][trainer.global_rank]
        checkpoint["optimizer_states"] = [own]


@torch.no_grad()
def average_weights(model: nn.Module) -> None:
    """Set the weights of all ranks to their mean, in a single exchange."""
    weights = [parameter.detach() for parameter in model.parameters()]
    for weight, total in zip(weights, all_reduce_list(weights), strict=True):
        weight.copy_(total / num_ranks())
