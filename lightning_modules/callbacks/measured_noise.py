"""The noise of each optimizer step's gradient, and the noise scale of each epoch."""

import math
from typing import Any

import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Callback
from torch.optim import Optimizer

from lightning_modules.callbacks.steps import gradient_norm, loss_scale
from lightning_modules.gradients.micro_gradients import MicroGradients
from lightning_modules.rank_plan import RankPlan
from sweeper.spec.noise import Noise, NoiseAverage, noise_of_batch, noise_scale


class GradientNoise(Callback):
    """Measures the noise among the gradients of `span` examples each in a batch, on all ranks.

    It costs another all-reduce per step, of a number per parameter.

    Args:
        span: examples of each gradient that is compared: the micro-batch [examples].

    Attributes:
        gradient_norm: of the step that is about to be taken, on the device.
        step_noise: noise of the step that is about to be taken; None if its gradient is not finite.
        columns: the epoch's `noise_scale`; None without any finite step [examples].
    """

    def __init__(self, plan: RankPlan, *, span: int) -> None:
        self._plan, self._span = plan, span
        self._micro = MicroGradients(lambda gradient: gradient.square().sum())
        self._epoch = NoiseAverage(smoothing=1.0)
        self.gradient_norm = torch.tensor(math.nan)
        self.step_noise: Noise | None = None
        self.columns: dict[str, float | None] = {"noise_scale": None}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Watch every micro-batch's gradient from now on."""
        self._micro.watch(
            pl_module.parameters(),
            accumulation_steps=lambda: trainer.accumulate_grad_batches,
            loss_scale=lambda: loss_scale(trainer),
        )

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer
    ) -> None:
        """Measure the step whose gradient is complete."""
        self.gradient_norm = gradient_norm(pl_module.parameters())
        norm = self.gradient_norm.item()
        self.step_noise = None
        if not math.isfinite(norm):  # the loss scaler skips this step
            return
        parameters = [p for p in pl_module.parameters() if p.grad is not None]
        mean_square = torch.stack(self._micro.means(parameters)).sum()
        batch = self._plan.split(trainer.current_epoch).global_batch
        self.step_noise = noise_of_batch(
            float(mean_square), norm**2, span=self._span, parts=batch // self._span
        )
        self._epoch.add(self.step_noise)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Average over the epoch's steps."""
        scale = noise_scale(self._epoch.mean()) if self._epoch.weight else None
        self.columns = {"noise_scale": scale}
        self._epoch = NoiseAverage(smoothing=1.0)

    def state_dict(self) -> dict[str, Any]:
        """The average over the epoch so far, in plain containers."""
        return self._epoch.state()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._epoch = NoiseAverage(**state_dict)
