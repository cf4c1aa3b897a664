"""The learning rate of each optimizer step: as scheduled, or as AdaScale computes it."""

from typing import Any

from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Callback
from torch.optim import Optimizer

from lightning_modules.callbacks.measured_noise import GradientNoise
from lightning_modules.optimizers.run_strategy import RunStrategy
from lightning_modules.rank_plan import RankPlan
from sweeper.spec.lr_rules import AdaScaleRule
from sweeper.spec.noise import AdaScale, NoiseAverage, smoothing
from sweeper.spec.run_spec import RunSpec


class LearningRate(Callback):
    """Sets the scheduled rate before each step, as a function of the step only."""

    def __init__(self, plan: RankPlan) -> None:
        self._plan = plan

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Set the rate of the step that this micro-batch belongs to."""
        _set_lr(trainer.optimizers[0], self._plan.lr(trainer.global_step))


class RateFactor(Callback):
    """Multiplies the rates of the module's own optimizers, as a function of the step only."""

    def __init__(self, plan: RankPlan) -> None:
        self._plan = plan

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check that there are learning rates to multiply.

        ValueError if there are none, or a group has none.
        """
        for optimizer in trainer.optimizers:
            if any(group.get("lr") is None for group in optimizer.param_groups):
                msg = (
                    "every group of an optimizer must have a learning rate, which the rule "
                    f"multiplies; got none for {type(optimizer).__name__}. Give it one that it "
                    "follows (Adafactor: lr= and relative_step=False), or set optimizer=."
                )
                raise ValueError(msg)
        if not any(optimizer.param_groups for optimizer in trainer.optimizers):
            msg = (
                "configure_optimizers must return the optimizers that train the module, so that "
                "the rule can multiply their rates; got none. Return them, or set optimizer=."
            )
            raise ValueError(msg)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Set the factor of the step that this micro-batch belongs to."""
        strategy = trainer.strategy
        assert isinstance(strategy, RunStrategy)
        # not global_step, which in manual optimization counts the steps of every optimizer
        strategy.factor = self._plan.lr(self._plan.step(trainer.current_epoch, batch_idx))


class AdaScaleRate(Callback):
    """Sets AdaScale's rate from each step's own gradient, and ends the run with the schedule.

    `noise` runs before this callback; `total_steps` are those of the base batch in the schedule.
    """

    def __init__(self, adascale: AdaScale, noise: GradientNoise, *, total_steps: float) -> None:
        self._adascale, self._noise, self._total_steps = adascale, noise, total_steps
        self._is_done = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Train no more if the run had already ended before it was resumed."""
        trainer.should_stop |= self._is_done

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Keep the last rate, for a step whose noise cannot be measured."""
        _set_lr(trainer.optimizers[0], self._adascale.lr)

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer
    ) -> None:
        """Set the rate that AdaScale computes from this step's gradient."""
        if self._noise.step_noise is not None:
            _set_lr(optimizer, self._adascale.step(self._noise.step_noise))

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End the run with the epoch in which the schedule ends."""
        self._is_done = self._adascale.progress >= self._total_steps
        trainer.should_stop |= self._is_done

    def state_dict(self) -> dict[str, Any]:
        """Progress and averages, in plain containers."""
        return {"adascale": self._adascale.state(), "is_done": self._is_done}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._adascale.load_state(state_dict["adascale"])
        self._is_done = state_dict["is_done"]


def learning_rate(
    spec: RunSpec, plan: RankPlan, noise: GradientNoise | None
) -> LearningRate | RateFactor | AdaScaleRate:
    """The callback that sets the learning rate by the run's scaling rule."""
    if spec.config.keeps_own_optimizer:
        return RateFactor(plan)
    rule, base_batch, batch = spec.config.lr_rule, spec.config.base_batch, spec.config.batch
    if not isinstance(rule, AdaScaleRule):
        return LearningRate(plan)
    assert noise is not None, "planning enables the measurement where it is needed"
    kept = rule.smoothing
    adascale = AdaScale(
        schedule=spec.schedule,
        base_batch=base_batch,
        global_batch=batch,
        average=NoiseAverage(smoothing=smoothing(batch / base_batch) if kept is None else kept),
    )
    total_steps = spec.epochs * spec.schedule.steps_per_epoch
    return AdaScaleRate(adascale, noise, total_steps=total_steps)


def _set_lr(optimizer: Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr
