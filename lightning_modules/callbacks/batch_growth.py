"""The batch of each epoch, given to the Trainer; it grows as planned or as its noise says."""

from typing import Any

from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Callback

from lightning_modules.callbacks.gradient_noise import GradientNoise
from lightning_modules.rank_plan import RankPlan
from sweeper.spec.run_spec import RunSpec
from sweeper.spec.schedules import GrowingBatch


class BatchSize(Callback):
    """Has Lightning accumulate as many micro-batches as the plan says for the epoch.

    Args:
        plan: of the run's batches.
    """

    def __init__(self, plan: RankPlan) -> None:
        self._plan = plan

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Also for an epoch resumed in the middle, which Lightning does not start again."""
        self.on_train_epoch_start(trainer, pl_module)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Accumulate as the epoch's batch needs."""
        steps = self._plan.split(trainer.current_epoch).accumulation_steps
        trainer.accumulate_grad_batches = steps


class MeasuredGrowth(Callback):
    """Lets the batch grow after epochs whose noise scale was above it.

    All ranks measure the same noise, so they decide alike.

    Args:
        plan: of the run's batches.
        noise: measured before this callback's turn.
        growths_allowed: before the batch would be too large [count].
        warmup_epochs: during which it stays [epochs].
    """

    def __init__(
        self,
        plan: RankPlan,
        noise: GradientNoise,
        *,
        growths_allowed: int,
        warmup_epochs: float,
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
        """When the batch grew, in plain containers."""
        return {"grown": list(self._plan.grown)}

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Grow as before; here, because the position to resume at depends on the batch."""
        self._plan.grow(tuple(checkpoint["callbacks"][self.state_key]["grown"]))


def measured_growth(
    spec: RunSpec, plan: RankPlan, noise: GradientNoise | None
) -> MeasuredGrowth | None:
    """The growth that a run's schedule asks for; None if it is planned, or there is none."""
    schedule = spec.config.schedule
    if not isinstance(schedule, GrowingBatch) or schedule.growth != "measured":
        return None
    assert noise is not None, "planning enables the measurement where it is needed"
    return MeasuredGrowth(
        plan,
        noise,
        growths_allowed=schedule.growths_allowed(spec.split.global_batch),
        warmup_epochs=spec.schedule.warmup_epochs,
    )
