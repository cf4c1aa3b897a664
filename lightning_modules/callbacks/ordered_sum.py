"""`reproducible=true`: each step's gradient is one sum in one order, on any number of ranks."""

from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Callback
from torch import Tensor

from lightning_modules.gradients.ordered_sum import OrderedGradients
from lightning_modules.rank_plan import RankPlan


class OrderedSum(Callback):
    """Hands each micro-batch's gradient to the ordered sum, undivided.

    Args:
        plan: of the run's batches.
        gradients: the sum; also what DDP exchanges gradients by (`GradientExchange`).
    """

    def __init__(self, plan: RankPlan, gradients: OrderedGradients) -> None:
        self._plan, self._gradients = plan, gradients

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Also for an epoch resumed in the middle, which Lightning does not start again."""
        self.on_train_epoch_start(trainer, pl_module)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Sum over the steps of this epoch's batch."""
        self._gradients.lay_out(self._plan.split(trainer.current_epoch))

    def on_before_backward(
        self, trainer: Trainer, pl_module: LightningModule, loss: Tensor
    ) -> None:
        """Undo Lightning's division of the loss by the accumulation steps, which rounds.

        The slope that reaches the undivided loss is n / n: one, exactly.
        """
        steps = trainer.accumulate_grad_batches

        def undivide(slope: Tensor) -> Tensor:
            return slope * steps

        loss.register_hook(undivide)

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take the micro-batch's gradients."""
        self._gradients.add()
