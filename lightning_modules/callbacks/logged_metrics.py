"""What a module logs: averaged over all examples of all ranks, and kept for each epoch."""

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any

from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Checkpoint
from torchmetrics import Metric

from lightning_modules.callbacks.logged_values import LoggedValues
from lightning_modules.rank_plan import RankPlan
from sweeper.spec.worker_args import METRIC_NOT_LOGGED


class LoggedMetrics(Checkpoint):
    """Gathers everything that a module has logged, and refuses a run without its metric.

    As a Checkpoint it has its turn after the module's, which may log at the end of an epoch.

    Lightning averages what is logged over batches whose sizes it guesses, on each rank alone; here
    it gets the number of examples, and `values` puts those of all ranks in their place.

    Args:
        plan: of the run's batches.
        metric: the name that the run is compared by.
        measured: callbacks whose columns are metrics too; they have had their turns.

    Attributes:
        values: a callback with turns of its own.
        columns: `metrics`: the values of the last epoch by name; none if the module logs nothing.
    """

    def __init__(self, plan: RankPlan, metric: str, measured: Sequence[Any]) -> None:
        self._plan, self._metric, self._measured = plan, metric, measured
        self.values = LoggedValues()
        self._examples: int | None = None
        self.columns: dict[str, Any] = {}

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Tell `log` how many examples a value stands for."""
        pl_module.log = self._weighed(pl_module.log, trainer)  # type: ignore[method-assign]

    def _weighed(self, log: Callable[..., None], trainer: Trainer) -> Callable[..., None]:
        @wraps(log)
        def weighed(name: str, value: Any, *args: Any, **settings: Any) -> None:
            if self._examples is not None:
                settings.setdefault("batch_size", self._examples)
            if not isinstance(value, Metric):
                by_step = trainer.training and settings.get("on_step") is not False
                settings["sync_dist"] = settings.get("sync_dist", False) and by_step
            log(name, value, *args, **settings)

        return weighed

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Every micro-batch of training has as many examples."""
        self._examples = self._plan.split(trainer.current_epoch).micro_batch

    def on_validation_batch_start(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """A batch of validation has as many as its loader says, if it is one of the user's."""
        loaders: Any = trainer.val_dataloaders
        if isinstance(loaders, Mapping):
            loaders = list(loaders.values())
        loader = loaders[dataloader_idx] if isinstance(loaders, Sequence) else loaders
        sizes = getattr(loader, "sizes", None)
        self._examples = sizes[batch_idx] if sizes else None

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """What is logged outside of batches stands for itself."""
        self._examples = None

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Gather the epoch's values.

        Raises:
            ValueError: if the run's metric is not among them.
        """
        self.values.merge(trainer)  # what the module has logged in its turn
        logged = {name: float(value) for name, value in trainer.callback_metrics.items()}
        self.columns = {"metrics": logged} if logged else {}
        known = {name: value for one in self._measured for name, value in one.columns.items()}
        if self._metric not in known | logged:
            names = ", ".join(sorted(known | logged))
            msg = (
                f"{METRIC_NOT_LOGGED}; got metric={self._metric}, it logged "
                f"{names or 'nothing'}. Choose one of them, or log it."
            )
            raise ValueError(msg)
