"""Resuming in the middle of an epoch, on any number of ranks and any micro-batch."""

from typing import Any

from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Callback

from lightning_modules.callbacks.batch_contract import BatchContract
from lightning_modules.rank_plan import RankPlan


class MidEpochResume(Callback):
    """Makes Lightning and the loader resume after the steps already done in an epoch.

    Lightning would train the first examples of the epoch again, and never the last: its loop
    counts micro-batches, which another layout counts differently. What a module has frozen, or
    unfrozen, since the start would be forgotten too. What other callbacks keep of the part of the
    epoch is their own state.

    Args:
        plan: of the run's batches.
        contract: counts the steps of the epoch.
    """

    def __init__(self, plan: RankPlan, contract: BatchContract) -> None:
        self._plan, self._contract = plan, contract
        self._module: LightningModule | None = None
        self._loaded: dict[str, Any] = {}

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Know what is trained."""
        self._module = pl_module

    def state_dict(self) -> dict[str, Any]:
        """What is trained, and optimizer steps of the epoch; 0 between two epochs [steps]."""
        assert self._module is not None, "it is trained"
        fixed = [name for name, p in self._module.named_parameters() if not p.requires_grad]
        still = [name for name, layer in self._module.named_modules() if not layer.training]
        return {"steps": self._contract.steps, "fixed": fixed, "in_evaluation": still}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep what was trained for the start."""
        self._loaded = state_dict

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Train the same parameters, with the same layers in evaluation."""
        loaded, self._loaded = self._loaded, {}
        if "fixed" in loaded:  # older checkpoints do not say
            fixed, still = set(loaded["fixed"]), set(loaded["in_evaluation"])
            for name, parameter in pl_module.named_parameters():
                parameter.requires_grad_(name not in fixed)
            for name, layer in pl_module.named_modules():
                layer.training = name not in still

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
