"""The noise of gradients, by step and by epoch, and growth of the batch by the noise scale."""

import math
from typing import Any

import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Callback
from torch.optim import Optimizer

from lightning_modules.gradients.micro_gradients import MicroGradients
from lightning_modules.modules.steps import AroundEvaluation, gradient_norm
from lightning_modules.rank_plan import RankPlan
from sweeper.spec.noise import (
    NOISE_COLUMNS,
    Noise,
    NoiseAverage,
    describe_noise,
    noise_of_batch,
)
from sweeper.spec.run_spec import RunSpec
from sweeper.spec.schedules import AdaptiveBatch, GrowingBatch


class GradientNoise(AroundEvaluation):
    """Measures the noise among the gradients of `span` examples each in a batch, on all ranks.

    It costs another all-reduce per step, of a number per parameter. The span is the micro-batch
    [examples].
    """

    def __init__(self, plan: RankPlan, *, span: int) -> None:
        self._plan, self._span = plan, span
        self._micro = MicroGradients(lambda gradient: gradient.square().sum())
        self._epoch = NoiseAverage(smoothing=1.0)
        # Of the step that is about to be taken: on the device; None if it is not finite.
        self.gradient_norm = torch.tensor(math.nan)
        self.step_noise: Noise | None = None
        # Of the epoch so far; None without any finite step.
        self.columns: dict[str, float | None] = dict.fromkeys(NOISE_COLUMNS)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Watch every micro-batch's gradient from now on."""
        self._micro.watch(pl_module, trainer)

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
        batch = self._last_batch(trainer)
        self.step_noise = noise_of_batch(
            float(mean_square), norm**2, span=self._span, parts=batch // self._span
        )
        self._epoch.add(self.step_noise)

    def on_steps_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Average over the epoch's steps so far."""
        self.columns = dict.fromkeys(NOISE_COLUMNS)
        if self._epoch.weight:
            batch = self._last_batch(trainer)
            self.columns |= describe_noise(self._epoch.mean(), span=self._span, batch=batch)

    def _last_batch(self, trainer: Trainer) -> int:
        """The batch of the last step, or of the one that is about to be taken [examples]."""
        split = self._plan.split(trainer.current_epoch)
        return split.micro_batch * split.world_size * trainer.accumulate_grad_batches

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin a new average."""
        super().on_train_epoch_end(trainer, pl_module)
        self._epoch = NoiseAverage(smoothing=1.0)

    def state_dict(self) -> dict[str, Any]:
        """The average over the epoch so far, in plain containers."""
        return self._epoch.state()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._epoch = NoiseAverage(**state_dict)


class MeasuredGrowth(Callback):
    """Lets the batch grow after epochs whose noise scale exceeded it.

    All ranks measure the same noise, so they decide alike; `noise` runs before this callback.
    The batch does not grow during the warmup, and only so often that it is never too large.
    """

    def __init__(
        self, plan: RankPlan, noise: GradientNoise, *, growths_allowed: int, warmup_epochs: float
    ) -> None:
        self._plan, self._noise = plan, noise
        self._growths_allowed, self._warmup_epochs = growths_allowed, warmup_epochs

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Decide on the batch of the epochs to come."""
        epochs, grown = trainer.current_epoch + 1, self._plan.grown
        noise_scale = self._noise.columns["noise_scale"]
        is_free = len(grown) < self._growths_allowed and epochs >= self._warmup_epochs
        batch = self._plan.split(epochs).global_batch
        if is_free and noise_scale is not None and noise_scale > batch:
            self._plan.grow((*grown, epochs))

    def state_dict(self) -> dict[str, Any]:
        """The epochs at which the batch grew, and to what, in plain containers."""
        return {"grown": list(self._plan.grown), "sizes": list(self._plan.sizes)}

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Restore past growth here already: the position to resume at depends on the batch."""
        state = checkpoint["callbacks"][self.state_key]
        self._plan.grow(tuple(state["grown"]), tuple(state.get("sizes", ())))


class MeasuredBatch(MeasuredGrowth):
    """Sets the next epoch's rate, and its batch to the nearest multiple of the first to the best.

    Both follow from the mean square of an example's gradient; if there is none, they stay.
    """

    def __init__(self, plan: RankPlan, noise: GradientNoise, best: AdaptiveBatch) -> None:
        super().__init__(plan, noise, growths_allowed=0, warmup_epochs=0)
        self._best = best

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Decide on the next epoch."""
        signal, variance = map(self._noise.columns.get, ("gradient_signal", "gradient_variance"))
        if signal is None or variance is None:
            return
        plan, best, square = self._plan, self._best, signal + variance
        num, first = plan.num_train_examples, plan.split(0).global_batch
        times = min(max(1, round(best.best_batch(square, num) / first)), best.max_batch // first)
        sizes = (*plan.sizes, (times, best.best_rate(times * first, square, num)))
        plan.grow((*plan.grown, trainer.current_epoch + 1), sizes)


def build_growth(
    spec: RunSpec, plan: RankPlan, noise: GradientNoise | None
) -> MeasuredGrowth | None:
    """The callback for a schedule with measured growth; None if growth is planned or absent."""
    schedule = spec.config.schedule
    if isinstance(schedule, AdaptiveBatch) and noise is not None:
        return MeasuredBatch(plan, noise, schedule)
    if not isinstance(schedule, GrowingBatch) or schedule.growth != "measured":
        return None
    assert noise is not None, "planning enables the measurement where it is needed"
    return MeasuredGrowth(
        plan,
        noise,
        growths_allowed=schedule.growths_allowed(spec.split.global_batch),
        warmup_epochs=spec.schedule.warmup_epochs,
    )
