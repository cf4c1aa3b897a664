"""Gradients that are applied some optimizer steps late, as in pipelines without a flush."""

from typing import Any

import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Callback
from torch import Tensor
from torch.optim import Optimizer

from lightning_modules.process.shards import shard_like, to_save


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
