"""Stopping a run that diverges, on all ranks at the same step."""

import math
from typing import Any

from pytorch_lightning import LightningModule, Trainer
from torch import Tensor
from torch.optim import Optimizer

from lightning_modules.callbacks.epoch_means import TrainingMetrics
from lightning_modules.callbacks.measured_noise import GradientNoise
from lightning_modules.methods.local_sgd import PostLocalSGD
from lightning_modules.modules.steps import (
    AroundEvaluation,
    current_lrs,
    ends_step,
    gradient_norm,
)
from lightning_modules.process.device import AsyncScalar
from sweeper.upstream.lightnings import is_validated


class Diverged(Exception):
    """The loss became non-finite or passed its ceiling; the text says where."""


class Divergence(AroundEvaluation):
    """Ends the run at a step with a non-finite gradient, or before evaluating too high a loss.

    On a CPU it ends before that gradient reaches the weights. Nothing waits for a GPU: the norm is
    read at the next step, or before the weights are evaluated or saved. On one rank, so is the
    loss; others would wait for the rank whose loss it is.

    Args:
        metrics: has the mean `train_loss` since the last evaluation; runs before this callback.
        loss_ceiling: the largest such loss after which the run continues; None for no limit.
        is_scaled: whether the loss is scaled, as with 16-mixed: its gradients overflow by design,
            and the step is then skipped.
        local: with local steps, ranks have different gradients, which are not checked.
        noise: measures the gradient's norm, and runs before this callback; None if the norm must be
            computed here.
    """

    def __init__(
        self,
        metrics: TrainingMetrics,
        *,
        loss_ceiling: float | None,
        is_scaled: bool = False,
        local: PostLocalSGD | None = None,
        noise: GradientNoise | None = None,
    ) -> None:
        self._metrics, self._loss_ceiling = metrics, loss_ceiling
        self._is_scaled, self._local, self._noise = is_scaled, local, noise
        self._watched: list[tuple[str, str, AsyncScalar]] = []  # what, and where

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer
    ) -> None:
        """Check the gradient's norm as soon as it has arrived from the device."""
        self._check()
        if self._is_scaled or (self._local is not None and self._local.is_local):
            return
        if self._noise is None:  # a walk through the module would take as long as the norm
            norm = gradient_norm(p for group in optimizer.param_groups for p in group["params"])
        else:
            norm = self._noise.gradient_norm
        self._watch("the gradient", norm, trainer)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Check the loss of a step: its gradient may be finite, or be made so by a hook."""
        if trainer.world_size == 1 and ends_step(trainer, batch_idx):
            self._watch("the training loss", self._metrics.total_loss, trainer)

    def _watch(self, what: str, number: Tensor, trainer: Trainer) -> None:
        self._watched.append((what, _describe_step(trainer), AsyncScalar(number)))
        if self._watched[-1][-1].ready:
            self._check()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Report divergence as the cause of an error that non-finite weights led to."""
        try:
            self._check()
        except Diverged as diverged:  # raised from here, it would keep the Trainer from tidying up
            exception.__cause__ = diverged

    def state_dict(self) -> dict[str, Any]:
        """No state; but raises rather than let non-finite weights be saved."""
        self._check()
        return {}

    def _check(self) -> None:
        watched, self._watched = self._watched, []
        for what, place, number in watched:
            if not math.isfinite(number.item()):
                msg = f"{what} became non-finite at {place}"
                raise Diverged(msg)

    def on_steps_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check the training loss since the last evaluation.

        ValueError if there is a ceiling but the module returns no loss.
        """
        self._check()
        if not is_validated(trainer):
            return
        loss: Any = self._metrics.columns.get("train_loss")
        if loss is None:  # manual optimization need not return it
            if self._loss_ceiling is not None:
                msg = (
                    "loss_ceiling needs a module whose training_step returns its loss; got "
                    f"loss_ceiling={self._loss_ceiling:g}, and no loss in epoch "
                    f"{trainer.current_epoch + 1}. Return the loss, or remove loss_ceiling."
                )
                raise ValueError(msg)
            return
        if not math.isfinite(loss):
            msg = f"the training loss became non-finite by {_describe_step(trainer)}"
            raise Diverged(msg)
        if self._loss_ceiling is not None and loss > self._loss_ceiling:
            ceiling = f"loss_ceiling={self._loss_ceiling:g}"
            msg = f"the training loss {loss:.4g} exceeded {ceiling} at {_describe_step(trainer)}"
            raise Diverged(msg)


def find_divergence(error: Exception) -> Diverged:
    """The divergence that an exception is or was caused by; any other exception is re-raised."""
    for candidate in (error, error.__cause__):
        if isinstance(candidate, Diverged):
            return candidate
    raise error


def _describe_step(trainer: Trainer) -> str:
    step, epoch = trainer.global_step, trainer.current_epoch + 1
    return f"step {step} of epoch {epoch}, lr={current_lrs(trainer)[0]:.6g}"
