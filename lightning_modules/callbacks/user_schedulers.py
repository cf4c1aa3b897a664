"""A module's own LR schedulers: counted in optimizer steps, and unchanged by a resume."""

from typing import Any

import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Checkpoint

from lightning_modules.modules.steps import AroundEvaluation, ends_step
from lightning_modules.process.world import all_reduce, num_ranks
from lightning_modules.rank_plan import RankPlan
from sweeper.upstream.lightnings import is_validated

#: Interval of a scheduler that Lightning leaves alone: it only steps "epoch" and "step".
_OURS: Any = "by the run"


def refute_lengths(trainer: Trainer) -> str:
    """Why runs of several lengths cannot share their steps; empty without schedulers."""
    names = ", ".join(type(config.scheduler).__name__ for config in trainer.lr_scheduler_configs)
    return names and (
        "lengths need a module without schedulers of its own, whose rates may depend on the "
        f"length; got {names}. Remove them: the schedule is wsd."
    )


class OwnSchedulers(AroundEvaluation, Checkpoint):
    """Steps the schedulers that monitor a metric; has Lightning count optimizer steps for the rest.

    Lightning counts a `frequency` of steps in micro-batches. It steps schedulers that monitor a
    metric only after the checkpoint of the step or epoch, and not at all in an epoch that it
    resumed midway, so a resumed run would have other rates. A `Checkpoint`, so that it runs after
    the module, which may log at the end of an epoch.
    """

    def __init__(self, plan: RankPlan) -> None:
        self._plan = plan
        self._configs: dict[str, list[Any]] = {"step": [], "epoch": []}
        self._of_steps: list[tuple[Any, int]] = []

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take the schedulers over; also in an epoch that Lightning resumes in the middle.

        ValueError for schedulers of runs that share a trunk, as they may depend on the length.
        """
        if self._plan.trunk_id and (why := refute_lengths(trainer)):
            raise ValueError(why)
        for config in trainer.lr_scheduler_configs if pl_module.automatic_optimization else ():
            if config.reduce_on_plateau and config.interval in self._configs:
                self._configs[config.interval].append(config)
                config.interval = _OURS
            elif config.interval == "step":
                self._of_steps.append((config, config.frequency))

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Convert frequencies from optimizer steps to micro-batches of this step's batch.

        ValueError for steps that the micro-batches do not tell, of an epoch with several batches.
        """
        for config, frequency in self._of_steps:
            config.frequency = frequency * trainer.accumulate_grad_batches
            if frequency > 1 and len(self._plan.phases(trainer.current_epoch)) > 1:
                msg = (
                    "a scheduler's frequency must be 1 with a batch that grows within an epoch; "
                    f"got frequency={frequency} of {type(config.scheduler).__name__}. Count in the "
                    "scheduler, or let the batch grow at ends of epochs."
                )
                raise ValueError(msg)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Step the per-step schedulers, except where validation comes first."""
        if ends_step(trainer, batch_idx) and not (trainer.is_last_batch or is_validated(trainer)):
            self._step_per_step(trainer, pl_module)

    def on_evaluated(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Step the per-step schedulers for a step that was validated within the epoch."""
        if not trainer.is_last_batch:
            self._step_per_step(trainer, pl_module)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Step the per-step schedulers for the last step, then those per epoch."""
        super().on_train_epoch_end(trainer, pl_module)
        if trainer.is_last_batch:
            self._step_per_step(trainer, pl_module)
        self._step(trainer, pl_module, "epoch", trainer.current_epoch + 1)

    def _step_per_step(self, trainer: Trainer, module: LightningModule) -> None:
        done = self._plan.steps_in(trainer.current_epoch, trainer.fit_loop.batch_idx + 1)
        self._step(trainer, module, "step", done)

    def _step(self, trainer: Trainer, module: LightningModule, interval: str, done: int) -> None:
        """Step the schedulers that are due after `done` steps of the epoch, or `done` epochs.

        ValueError if what a scheduler monitors is not logged.
        """
        for config in self._configs[interval]:
            if done % config.frequency:
                continue
            value = trainer.callback_metrics.get(config.monitor)
            if value is not None:
                # the mean over ranks of what each logged last, so that all have the same rate
                mean = all_reduce(value.to(module.device, torch.float64, copy=True)) / num_ranks()
                module.lr_scheduler_step(config.scheduler, mean.to(value))
            elif config.strict:
                names = ", ".join(sorted(trainer.callback_metrics)) or "nothing"
                msg = (
                    "what a scheduler monitors must be logged; got "
                    f"monitor={config.monitor} of {type(config.scheduler).__name__}, the module "
                    f"logged {names}. Monitor one of them, or log it."
                )
                raise ValueError(msg)
