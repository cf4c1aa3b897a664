"""Adversarial examples that are made with weights from some steps ago."""

from collections.abc import Callable
from typing import Any

import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Callback
from torch import Tensor
from torch.optim import Optimizer

from lightning_modules.gradients.micro_gradients import loss_scale
from lightning_modules.layers.ghost_batchnorm import track_statistics
from lightning_modules.run_class import run_class


class ConAdv(Callback):
    """Trains on ``x + radius sign(dL/dx)``, the gradient taken at the weights of earlier steps.

    With stale weights, the gradients of the inputs and those of the weights could be computed at
    the same time; here they are computed one after the other. With `stale_steps` 0 it is ordinary
    adversarial training by a single step. Training metrics are of the examples that are trained on,
    BatchNorm's running statistics too.

    Args:
        radius: largest change of an input, in the units that the model gets.
        stale_steps: age of the weights that make the examples; younger in the first steps [steps].

    Source:
        Liu et al. 2022, arXiv:2106.00221, as its abstract describes it: no full text was available.
        The single signed step is that of Goodfellow et al. 2014, arXiv:1412.6572.
    """

    def __init__(self, *, radius: float, stale_steps: int) -> None:
        self._radius, self._stale_steps = radius, stale_steps
        self._past: list[list[Tensor]] = []  # weights before each of the last steps, oldest first

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Have each training step take adversarial examples."""

        def train_on_adversaries(
            own: Callable[..., Any], batch: tuple[Tensor, Tensor], batch_idx: int
        ) -> Any:
            inputs, labels = batch
            with torch.enable_grad():
                moved = inputs.detach().clone().requires_grad_()
                slope = self._find_slope(trainer, pl_module, own, (moved, labels), batch_idx)
            return own((inputs + self._radius * slope.sign(), labels), batch_idx)

        run_class(pl_module).wrap("training_step", train_on_adversaries)

    def _find_slope(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        own: Callable[..., Any],
        batch: tuple[Tensor, Tensor],
        batch_idx: int,
    ) -> Tensor:
        """The gradient of the inputs at the stale weights."""
        weights = [p.detach() for p in pl_module.parameters()]
        kept = [weight.clone() for weight in weights]
        for weight, past in zip(weights, self._past[0] if self._past else (), strict=False):
            weight.copy_(past)
        track_statistics(pl_module, is_on=False)
        loss = own(batch, batch_idx)["loss"]
        # Scaled like the backward pass of 16-mixed, where small gradients would underflow to 0.
        (slope,) = torch.autograd.grad(loss * loss_scale(trainer), batch[0])
        track_statistics(pl_module, is_on=True)
        for weight, own_weight in zip(weights, kept, strict=True):
            weight.copy_(own_weight)
        return slope

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Move to the device what a checkpoint held."""
        self._past = [[w.to(pl_module.device) for w in weights] for weights in self._past]

    @torch.no_grad()
    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer
    ) -> None:
        """Keep the weights that the step is about to change."""
        self._past.append([p.detach().clone() for p in pl_module.parameters()])
        self._past = self._past[max(0, len(self._past) - self._stale_steps) :]

    def state_dict(self) -> dict[str, Any]:
        """The weights of the last steps, in the order of the parameters."""
        return {"past": self._past}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._past = state_dict["past"]
