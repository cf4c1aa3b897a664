"""Growth of the batch by the measured noise scale."""

from typing import Any

from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Callback

from lightning_modules.callbacks.measured_noise import GradientNoise
from lightning_modules.rank_plan import RankPlan
from sweeper.spec.run_spec import RunSpec
from sweeper.spec.schedules import GrowingBatch


class MeasuredGrowth(Callback):
    """Lets the batch grow after epochs whose noise scale exceeded it.

    All ranks measure the same noise, so they decide alike.

    Args:
        noise: measures the noise scale; runs before this callback.
        growths_allowed: how often the batch may grow before it would be too large [count].
        warmup_epochs: during which the batch does not grow [epochs].
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
        """The epochs at which the batch grew, in plain containers."""
        return {"grown": list(self._plan.grown)}

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Restore past growth here already: the position to resume at depends on the batch."""
        self._plan.grow(tuple(checkpoint["callbacks"][self.state_key]["grown"]))


def build_growth(
    spec: RunSpec, plan: RankPlan, noise: GradientNoise | None
) -> MeasuredGrowth | None:
    """The callback for a schedule with measured growth; None if growth is planned or absent."""
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
