"""Gradients that are applied some optimizer steps late, as in pipelines without a flush."""

from collections.abc import Sequence
from typing import Any

import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Callback
from torch import Tensor
from torch.optim import Optimizer

from lightning_modules.layers.batch_position import StepPosition
from lightning_modules.process.shards import shard_like, to_save
from lightning_modules.rank_plan import RankPlan


class GradientDelay(Callback):
    """Replaces a step's gradient by that of `delay` steps before.

    Step ``t`` applies the gradient of step ``max(0, t - delay)``, so the first ``delay + 1`` steps
    apply the first gradient, and the last `delay` gradients are not applied. Ranks hold the same
    gradients, those of the whole batch.

    Memory: `delay` times the gradients, in checkpoints too.
    """

    def __init__(self, *, delay: int) -> None:
        self._delay = delay
        self._held: dict[int, list[list[Tensor | None]]] = {}  # by optimizer, the oldest first

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Move to the device what a checkpoint held."""
        for number, steps in self._held.items():
            groups = trainer.optimizers[number].param_groups
            weights = [p for group in groups for p in group["params"]]
            steps[:] = [
                [
                    g if g is None else shard_like(p, g.to(p.device))
                    for p, g in zip(weights, step, strict=True)
                ]
                for step in steps
            ]

    @torch.no_grad()
    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer
    ) -> None:
        """Hold this step's gradient, and apply the one that is due."""
        weights: list[Tensor] = [p for group in optimizer.param_groups for p in group["params"]]
        held = self._held.setdefault(trainer.optimizers.index(optimizer), [])
        held.append([None if p.grad is None else p.grad.clone() for p in weights])
        due = held.pop(0) if len(held) > self._delay else held[0]
        for weight, gradient in zip(weights, due, strict=True):
            if weight.grad is None or gradient is None:
                weight.grad = gradient
            else:
                weight.grad.copy_(gradient)

    def state_dict(self) -> dict[str, Any]:
        """The gradients that are held, in plain containers."""
        return {"held": to_save(self._held)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._held = state_dict["held"]


class SliceDelays(Callback):
    """Takes the gradient of each slice of the batch at weights that are some steps old.

    A step's examples are as many equal slices as `delays` [steps]. Slice ``i`` of step ``t`` sees
    the weights before step ``max(0, t - delays[i])``; the mean of all slices' gradients is applied
    to the current weights. A micro-batch lies within a slice, on whatever rank.

    Memory: as many copies of the weights as the largest delay, and one more; in checkpoints too.
    """

    def __init__(self, plan: RankPlan, position: StepPosition, *, delays: Sequence[int]) -> None:
        self._plan, self._position, self._delays = plan, position, delays
        self._past: list[list[Tensor]] = []  # weights before the last steps, the oldest first
        self._is_first = True  # micro-batch of a step

    @torch.no_grad()
    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Set the weights that this micro-batch's slice sees."""
        if self._is_first:
            self._past.append([p.detach().clone() for p in pl_module.parameters()])
            self._past = self._past[-max(self._delays) - 1 :]
            self._is_first = False
        at = self._position
        whole = self._plan.split(at.epoch, at.step).global_batch
        number = (at.first_example - at.step_start) * len(self._delays) // whole
        self._set(pl_module, self._past[max(0, len(self._past) - 1 - self._delays[number])])

    @torch.no_grad()
    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer
    ) -> None:
        """Set the current weights again, which the step is about to change."""
        self._set(pl_module, self._past[-1])
        self._is_first = True

    def _set(self, module: LightningModule, weights: Sequence[Tensor]) -> None:
        for parameter, weight in zip(module.parameters(), weights, strict=True):
            parameter.copy_(weight)

    def state_dict(self) -> dict[str, Any]:
        """The weights before the last steps, in the order of the parameters."""
        return {"past": self._past}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._past = state_dict["past"]
