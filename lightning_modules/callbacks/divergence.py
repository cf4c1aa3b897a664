"""Stopping a run that diverges, on all ranks at the same step."""

import math
from collections.abc import Callable
from typing import Any

from pytorch_lightning import LightningModule, Trainer
from torch.optim import Optimizer

from lightning_modules.callbacks.epoch_means import TrainingMetrics
from lightning_modules.callbacks.gradient_noise import GradientNoise
from lightning_modules.callbacks.local_sgd import PostLocalSGD
from lightning_modules.callbacks.steps import AfterSteps, current_lr, gradient_norm
from lightning_modules.process.transfer import Arriving


class Diverged(Exception):
    """The loss became non-finite or passed its ceiling; the text says where."""


class Divergence(AfterSteps):
    """Ends the run at a step whose gradient is not finite, or after a hopeless epoch.

    On a CPU it ends before that gradient reaches the weights. A GPU is not waited for: the norm is
    read when the next step is computed, or before the weights are evaluated or saved.

    Args:
        metrics: the epoch's `train_loss`, averaged before this callback's turn.
        loss_ceiling: largest training loss of an epoch that is gone on from; None for any.
        sees_gradient: whether all ranks have the gradient of the step that is about to be taken.
        noise: has measured the gradient's norm before this callback's turn; None if it must be
            computed here.
    """

    def __init__(
        self,
        metrics: TrainingMetrics,
        *,
        loss_ceiling: float | None,
        sees_gradient: Callable[[], bool],
        noise: GradientNoise | None = None,
    ) -> None:
        self._metrics, self._loss_ceiling = metrics, loss_ceiling
        self._sees_gradient, self._noise = sees_gradient, noise
        self._norm: Arriving | None = None
        self._place = ""

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer
    ) -> None:
        """Look at the gradient's norm as soon as it is here."""
        self._look()
        if not self._sees_gradient():
            return
        if self._noise is None:  # a walk through the module would take as long as the norm
            norm = gradient_norm(p for group in optimizer.param_groups for p in group["params"])
        else:
            norm = self._noise.gradient_norm
        self._norm, self._place = Arriving(norm), _place(trainer)
        if self._norm.is_here:
            self._look()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """What raises on weights that are not finite has its cause in the step before."""
        try:
            self._look()
        except Diverged as diverged:  # raised from here, it would keep the Trainer from tidying up
            exception.__cause__ = diverged

    def state_dict(self) -> dict[str, Any]:
        """Nothing; but no weights are saved that are not finite."""
        self._look()
        return {}

    def _look(self) -> None:
        norm, self._norm = self._norm, None
        if norm is not None and not math.isfinite(norm.read()):
            msg = f"the gradient became non-finite at {self._place}"
            raise Diverged(msg)

    def after_steps(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Look at the epoch's training loss.

        Raises:
            ValueError: if there is a ceiling, and no loss.
        """
        self._look()
        loss: Any = self._metrics.columns.get("train_loss")
        if loss is None:  # of manual optimization, which need not tell it
            if self._loss_ceiling is not None:
                msg = (
                    "loss_ceiling needs a module whose training_step returns its loss; got "
                    f"loss_ceiling={self._loss_ceiling:g}, and no loss in epoch "
                    f"{trainer.current_epoch + 1}. Return the loss, or remove loss_ceiling."
                )
                raise ValueError(msg)
            return
        if not math.isfinite(loss):
            _diverge("the training loss became non-finite", trainer)
        if self._loss_ceiling is not None and loss > self._loss_ceiling:
            ceiling = f"loss_ceiling={self._loss_ceiling:g}"
            _diverge(f"the training loss {loss:.4g} exceeded {ceiling}", trainer)


def divergence(
    metrics: TrainingMetrics,
    *,
    precision: str,
    loss_ceiling: float | None,
    local: PostLocalSGD | None,
    noise: GradientNoise | None,
) -> Divergence:
    """What stops a run; not by its gradients where those may be non-finite or differ on ranks."""
    is_scaled = precision == "16-mixed"  # overflows on purpose, skips those steps
    return Divergence(
        metrics,
        loss_ceiling=loss_ceiling,
        sees_gradient=lambda: not is_scaled and (local is None or not local.is_local),
        noise=noise,
    )


def divergence_behind(error: Exception) -> Diverged:
    """The divergence that an exception is or comes from; any other exception is raised again."""
    for one in (error, error.__cause__):
        if isinstance(one, Diverged):
            return one
    raise error


def _diverge(reason: str, trainer: Trainer) -> None:
    msg = f"{reason} at {_place(trainer)}"
    raise Diverged(msg)


def _place(trainer: Trainer) -> str:
    step, epoch = trainer.global_step, trainer.current_epoch + 1
    return f"step {step} of epoch {epoch}, lr={current_lr(trainer):.6g}"
