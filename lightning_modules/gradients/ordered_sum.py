"""Bitwise reproducible steps on any number of ranks, for the same micro-batch size."""

import os
from typing import Any

import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Callback
from torch import Tensor, nn
from torch.distributed import GradBucket
from torch.futures import Future

from lightning_modules.gradients.tree_sum import TreeSum, rank_nodes, sum_over_ranks
from lightning_modules.layers.batch_position import StepPosition
from lightning_modules.layers.ghost_batchnorm import GhostBatchNorm, ghost_batchnorms
from lightning_modules.optimizers.run_strategy import ddp_wrapper
from lightning_modules.rank_plan import RankPlan, micro_batch_indices
from sweeper.spec.batch import BatchSplit


class OrderedSum(Callback):
    """The mean gradient of a step, and its BatchNorm statistics, summed in a fixed order.

    The gradient of each micro-batch's own undivided loss is a leaf of a tree over the step's
    micro-batches in the step's order; the root is divided by their number, once.

    DDP exchanges nothing: each rank keeps its own gradients. The callback that moves `position` on
    must run before this callback.
    """

    def __init__(self, plan: RankPlan, position: StepPosition) -> None:
        self._plan, self._position, self._split = plan, position, plan.split(0)
        self._weights: list[nn.Parameter] = []
        self._norms: list[GhostBatchNorm] = []

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Register the hook, and set up the sums."""
        ddp_wrapper(trainer).register_comm_hook(None, _keep_own)
        self._weights = [weight for weight in pl_module.parameters() if weight.requires_grad]
        self._norms = list(ghost_batchnorms(pl_module))
        self._set_up(self._split)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Set up the sums for this step's batch, if it is another than before."""
        split = self._plan.split(trainer.current_epoch, self._position.step)
        if split != self._split:
            self._set_up(split)

    def _set_up(self, split: BatchSplit) -> None:
        self._split = split
        self._num = split.world_size * split.accumulation_steps  # micro-batches of a step
        self._spans = split.global_batch // self._plan.bn_span  # of a step
        indices = micro_batch_indices(split, self._plan.bn_span)
        self._last = indices[self._plan.rank][-1]
        self._held = rank_nodes(indices)
        self._sum = TreeSum(self._num)

    def on_before_backward(
        self, trainer: Trainer, pl_module: LightningModule, loss: Tensor
    ) -> None:
        """Undo Lightning's division of the loss by the accumulation steps, which rounds.

        The gradient that reaches the undivided loss is n / n: exactly 1.
        """
        steps = trainer.accumulate_grad_batches
        loss.register_hook(lambda slope: slope * steps)  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Add a micro-batch's gradients and BatchNorm terms; after the last, set the step's."""
        position = self._position
        index = (position.first_example - position.step_start) // self._split.micro_batch
        leaf = [
            torch.zeros_like(weight) if weight.grad is None else weight.grad
            for weight in self._weights
        ]
        for weight in self._weights:
            weight.grad = None
        end = position.step_start // self._plan.bn_span + self._spans
        self._sum.add((index, index + 1), leaf + [norm.take_terms(end) for norm in self._norms])
        if index != self._last:
            return
        partial, self._sum.partial = self._sum.partial, {}
        sums = sum_over_ranks(partial, self._held, self._plan.rank)
        gradients, terms = sums[: len(self._weights)], sums[len(self._weights) :]
        for weight, gradient in zip(self._weights, gradients, strict=True):
            weight.grad = torch.empty_like(weight).copy_(gradient.div_(self._num))
        for norm, of_step in zip(self._norms, terms, strict=True):
            norm.add_terms(of_step, self._spans)

    def state_dict(self) -> dict[str, Any]:
        """What must be the same when a run resumes from a checkpoint."""
        return {"micro_batch": self._split.micro_batch}

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Refuse to resume from a checkpoint that was made with other sums.

        ValueError if the checkpoint was made with another micro-batch.
        """
        state = checkpoint["callbacks"].get(self.state_key)
        if state != self.state_dict():
            before = f"micro_batch={state['micro_batch']}" if state else "reproducible=false"
            msg = (
                "with reproducible=true a run must resume with the settings it started with; its "
                f"checkpoint was made with {before}, now micro_batch={self._split.micro_batch}. "
                "Resume with those settings, or start over (rerun=all)."
            )
            raise ValueError(msg)


def _keep_own(state: object, bucket: GradBucket) -> Future[Tensor]:
    """A communication hook that exchanges nothing: each rank keeps its own gradients."""
    del state
    future: Future[Tensor] = Future()
    future.set_result(bucket.buffer())
    return future


def use_deterministic_algorithms() -> None:
    """Make torch refuse operations whose result changes from call to call; before any CUDA call."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(mode=True)
    # Filling memory that is not yet in use is for finding bugs and costs time; torch's stub of this
    # module is empty.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
