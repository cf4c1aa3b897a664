"""How ranks exchange gradients, as a callback around a communication hook."""

from typing import Any

from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Callback

from lightning_modules.gradients.comm_hooks import CommHook, ddp_of


class GradientExchange(Callback):
    """Registers a communication hook and keeps its state in checkpoints.

    Lightning registers hooks on GPUs only, and says nothing elsewhere.

    Args:
        comm_hook: the hook and what it keeps from step to step.
    """

    def __init__(self, comm_hook: CommHook) -> None:
        self._comm_hook = comm_hook

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Register the hook; before the first backward pass."""
        self._comm_hook.register(ddp_of(trainer))

    def state_dict(self) -> dict[str, Any]:
        """The hook's state; all ranks take part."""
        return {"hook": self._comm_hook.state()}

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Restore it; a hook may refuse the state of another."""
        self._comm_hook.load_state(checkpoint["callbacks"][self.state_key]["hook"])
