"""Resuming in the middle of an epoch, on any number of ranks and any micro-batch."""

from typing import Any

from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Callback

from lightning_modules.callbacks.batch_contract import BatchContract
from lightning_modules.rank_plan import RankPlan


class MidEpochResume(Callback):
    """Makes Lightning and the loader resume after the steps already done in an epoch.

    Lightning would train the first examples of the epoch again, and never the last: its loop
    counts micro-batches, which another layout counts differently. What other callbacks keep of
    the part of the epoch is their own state.

    Args:
        plan: of the run's batches.
        contract: counts the steps of the epoch.
    """

    def __init__(self, plan: RankPlan, contract: BatchContract) -> None:
        self._plan, self._contract = plan, contract

    def state_dict(self) -> dict[str, Any]:
        """Optimizer steps that the epoch has had; 0 between two epochs [steps]."""
        return {"steps": self._contract.steps}

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Count as trained what is behind, in micro-batches of this layout."""
        steps, epoch = checkpoint["callbacks"][self.state_key]["steps"], checkpoint["epoch"]
        if not steps:
            return
        self._plan.resume(epoch, steps)
        taken = steps * self._plan.split(epoch).accumulation_steps
        # private: Lightning epoch_loop.batch_progress
        progress = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]["current"]
        # One fewer is completed: Lightning counts the last one when it resumes.
        progress.update(ready=taken, started=taken, processed=taken, completed=taken - 1)
