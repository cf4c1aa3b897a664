"""Optimizers that train with other weights than those to evaluate, such as schedule-free ones."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from copy import copy
from typing import Any

import torch
from lightning_fabric.utilities import move_data_to_device
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Callback
from torch import Tensor, nn

from lightning_modules.layers.batch_position import StepPosition
from lightning_modules.layers.ghost_batchnorm import PlainBatchNorm, ghost_batchnorms
from lightning_modules.modules.extra_pass import call_training_step
from lightning_modules.modules.run_trainer import RunTrainer
from lightning_modules.modules.steps import ends_step
from lightning_modules.process.shards import shard_like, to_save
from lightning_modules.process.world import num_ranks


class EvaluatedWeights(Callback):
    """Calls an optimizer's `eval()` before evaluations and checkpoints, and `train()` after them.

    It acts if an optimizer has both methods. The weights to train with are kept meanwhile, and in
    checkpoints, because `train()` would restore them with a rounding error. The running statistics
    of BatchNorm are of these; for an evaluation, and a checkpoint after it, they are computed with
    the weights to evaluate: over all examples of the last step, later ones weighted more as in
    training. A module that optimizes by hand keeps those of training, since its steps cannot be
    repeated.

    Args:
        is_due: whether to evaluate after the step of a micro-step of an epoch, both 0-based.
        averages: whether the run evaluates an average of the weights instead.

    Source:
        github.com/facebookresearch/schedule_free, on caveats (modes, checkpoints, BatchNorm).
    """

    def __init__(self, is_due: Callable[[int, int], bool], *, averages: bool) -> None:
        self._is_due, self._averages = is_due, averages
        self._optimizers: list[Any] = []
        # Of the step that is to be evaluated, with the place in it of each one's first example.
        self._batches: list[tuple[Any, int]] = []
        self._statistics: dict[str, Tensor] = {}  # for the weights to evaluate after this step
        self._kept: dict[str, Tensor] = {}  # what is trained with, while it is replaced
        self._loaded: dict[str, Tensor] = {}

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Act around each checkpoint, whoever saves it."""
        if isinstance(trainer, RunTrainer):
            trainer.around_save = lambda: self._evaluate(pl_module)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Go to training mode; ValueError if the run averages the weights as well."""
        self._optimizers = [o for o in trainer.optimizers if {"eval", "train"} <= {*dir(o)}]
        if self._optimizers and self._averages:
            msg = (
                "ema_decay must be null with an optimizer that has weights of its own to evaluate; "
                f"got optimizer {type(self._optimizers[0]).__name__}. Remove ema_decay."
            )
            raise ValueError(msg)
        for optimizer in self._optimizers:
            optimizer.train()
        _replace(pl_module, self._loaded)
        self._loaded = {}

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Keep the batches of a step that is to be evaluated, in main memory."""
        self._statistics = {}
        is_due = self._is_due(trainer.current_epoch, batch_idx)
        if self._optimizers and is_due and pl_module.automatic_optimization and _norms(pl_module):
            position = _find_position(pl_module)
            place = position.first_example - position.step_start
            self._batches.append((move_data_to_device(copy(batch), "cpu"), place))

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Compute the statistics after such a step, while all layers are in training mode."""
        if self._batches and ends_step(trainer, batch_idx):
            with self._evaluate(pl_module):
                self._statistics = self._compute_statistics(trainer, pl_module)
            self._batches = []

    @torch.no_grad()
    def _compute_statistics(
        self, trainer: Trainer, pl_module: LightningModule
    ) -> dict[str, Tensor]:
        """The running statistics of the kept batches alone, by the names of their buffers."""
        buffers = {name: buffer.clone() for name, buffer in pl_module.named_buffers()}
        position = _find_position(pl_module)
        examples = position.examples
        states = [(layer, layer.state) for layer in position.layers]
        norms = _norms(pl_module)
        for layer, state in states:
            layer.state = state.begin_anew()
        for norm in norms.values():
            norm.reset_running_stats()
            norm.running_var.zero_()  # reset to 1, which would stay in the average
        for micro_step, (batch, place) in enumerate(self._batches):
            position.move(epoch=position.epoch, step=0, first_example=place, examples=examples)
            on_device = move_data_to_device(batch, pl_module.device)
            call_training_step(trainer, pl_module, on_device, micro_step)
        for layer in ghost_batchnorms(pl_module):
            layer.merge_ranks(num_ranks() * len(self._batches) * examples // layer.state.span)
        found: dict[str, Tensor] = {}
        for name, norm in norms.items():
            if not (spans := int(norm.num_batches_tracked)):
                continue  # it is in evaluation mode
            # The first span's predecessors are left out of the moving average.
            weight = 1.0 if norm.momentum is None else 1 - (1 - norm.momentum) ** spans
            for key in ("running_mean", "running_var"):
                found[f"{name}.{key}".lstrip(".")] = getattr(norm, key) / weight
        for layer, state in states:
            state.counted_pass = state.counted_pass and position.moves
            layer.state = state
        _replace(pl_module, buffers)
        return found

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Replace what is trained with by what is to be evaluated."""
        self._begin(pl_module)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Go back to what is trained with."""
        self._end(pl_module)

    @contextmanager
    def _evaluate(self, pl_module: LightningModule) -> Generator[None]:
        if not self._optimizers or self._kept:  # a checkpoint that is saved during an evaluation
            yield
            return
        self._begin(pl_module)
        try:
            yield
        finally:
            self._end(pl_module)

    def _begin(self, pl_module: LightningModule) -> None:
        if self._optimizers:
            named = dict(pl_module.named_parameters()) | {
                name: pl_module.get_buffer(name) for name in self._statistics
            }
            self._kept = {name: tensor.detach().clone() for name, tensor in named.items()}
            for optimizer in self._optimizers:
                optimizer.eval()
            _replace(pl_module, self._statistics)

    def _end(self, pl_module: LightningModule) -> None:
        for optimizer in self._optimizers:
            optimizer.train()
        _replace(pl_module, self._kept)
        self._kept = {}

    def state_dict(self) -> dict[str, Any]:
        """What is trained with, by name; empty if that is evaluated too."""
        return {"trained": to_save(self._kept)} if self._kept else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._loaded = state_dict["trained"]


def _find_position(module: nn.Module) -> StepPosition:
    """The position that the module's layers of a fixed span share."""
    return next((layer.state.position for layer in ghost_batchnorms(module)), StepPosition())


def _norms(module: nn.Module) -> dict[str, Any]:
    """The BatchNorm layers that keep running statistics, by name."""
    return {
        name: layer
        for name, layer in module.named_modules()
        if isinstance(layer, PlainBatchNorm) and layer.running_mean is not None
    }


@torch.no_grad()
def _replace(module: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Copy tensors into the parameters and buffers of these names."""
    named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    for name, tensor in tensors.items():
        named[name].copy_(shard_like(named[name], tensor))
