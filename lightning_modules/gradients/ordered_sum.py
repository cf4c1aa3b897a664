"""Bitwise reproducible steps on any number of ranks, for one micro-batch size."""

# torch has no public names for its multi-tensor operations.
# pyright: reportPrivateUsage=false

import os

import torch
from torch import Tensor, nn
from torch.distributed import GradBucket
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from lightning_modules.gradients.tree_sum import TreeSum, held_nodes, sum_over_ranks
from lightning_modules.layers.ghost_batchnorm import ghost_batchnorms
from lightning_modules.layers.position import StepPosition
from lightning_modules.rank_plan import micro_batch_indices
from sweeper.spec.batch import BatchSplit


class OrderedGradients:
    """The mean gradient of a step, and its BatchNorm statistics, as one fixed sum.

    The gradient of each micro-batch's own undivided loss is a leaf of one tree over the step's
    micro-batches in the step's order; the root is divided by their number, once.

    Args:
        model: whose gradients; DDP must leave them as they are.
        position: of the micro-batch; moved on by a callback.
        bn_span: examples normalised together [examples].
        rank: this process among the ranks.
        split: of the run's first step.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        position: StepPosition,
        bn_span: int,
        rank: int,
        split: BatchSplit,
    ) -> None:
        self._weights = [weight for weight in model.parameters() if weight.requires_grad]
        self._norms = list(ghost_batchnorms(model))
        self._position, self._bn_span, self._rank = position, bn_span, rank
        self.lay_out(split)

    def register(self, model: DistributedDataParallel) -> None:
        """Make DDP leave each rank its own gradients; before the first backward pass."""
        model.register_comm_hook(None, _keep)

    def state(self) -> dict[str, int]:
        """What must be the same when a run resumes from a checkpoint."""
        return {"micro_batch": self._split.micro_batch}

    def load_state(self, state: dict[str, int] | None) -> None:
        """Refuse to resume from a checkpoint with other sums.

        Raises:
            ValueError: if the checkpoint's weights are those of another micro-batch.
        """
        if state != self.state():
            before = f"micro_batch={state['micro_batch']}" if state else "reproducible=false"
            msg = (
                "with reproducible=true a run must resume with the settings it started with; its "
                f"checkpoint was made with {before}, now micro_batch={self._split.micro_batch}. "
                "Resume with those settings, or start over (rerun=all)."
            )
            raise ValueError(msg)

    def lay_out(self, split: BatchSplit) -> None:
        """Go to a layout of the optimizer steps."""
        self._split = split
        self._indices = micro_batch_indices(split, self._bn_span)
        self._num = split.world_size * split.accumulation_steps
        self._held = held_nodes(self._indices)
        self._sum = TreeSum(self._num)

    @torch.no_grad()
    def add(self) -> None:
        """Take the gradients of a micro-batch; after a step's last, they become those of the step.

        To be called after each backward pass.
        """
        split, position = self._split, self._position
        index = position.first_example // split.micro_batch - position.step * self._num
        is_last = index == self._indices[self._rank][-1]
        self._sum.add((index, index + 1), self._leaf())
        if is_last:
            self._set(sum_over_ranks(self._sum.take(), self._held, self._rank))

    def _leaf(self) -> list[Tensor]:
        """Gradients and running terms of one micro-batch; the next begins with none."""
        end = (self._position.step + 1) * self._spans
        gradients = [
            torch.zeros_like(weight) if weight.grad is None else weight.grad
            for weight in self._weights
        ]
        for weight in self._weights:
            weight.grad = None
        return gradients + [norm.take_terms(end) for norm in self._norms]

    def _set(self, sums: list[Tensor]) -> None:
        gradients, terms = sums[: len(self._weights)], sums[len(self._weights) :]
        torch._foreach_div_(gradients, float(self._num))
        for weight, gradient in zip(self._weights, gradients, strict=True):
            weight.grad = torch.empty_like(weight).copy_(gradient)
        for norm, of_step in zip(self._norms, terms, strict=True):
            norm.add_terms(of_step, self._spans)

    @property
    def _spans(self) -> int:
        return self._split.global_batch // self._bn_span


def _keep(state: object, bucket: GradBucket) -> Future[Tensor]:
    """DDP's exchange of a bucket of gradients without any: each rank keeps its own."""
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
