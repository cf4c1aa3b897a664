"""What a module logs: averaged over all examples on all ranks, and kept for each epoch."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Checkpoint
from torchmetrics import Metric

from lightning_modules.callbacks.logged_values import LoggedValues
from lightning_modules.rank_plan import RankPlan
from lightning_modules.run_class import run_class
from sweeper.spec.worker_args import METRIC_NOT_LOGGED
from sweeper.upstream.lightnings import has_epoch_values


class LoggedMetrics(Checkpoint):
    """Gathers everything that a module has logged, and fails a run that does not log its metric.

    A `Checkpoint`, so that it runs after the module, which may log at the end of an epoch.

    Lightning weights logged values by batch sizes that it guesses, on each rank alone. Here it gets
    the number of examples, and `values` replaces each rank's values by those of all ranks.

    Args:
        plan: the run's batch plan.
        metric: the name that the run is compared by.
        measured: callbacks whose columns are metrics too; they run before this one.

    Attributes:
        values: merges the values of all ranks; a callback to be given to the Trainer itself.
        columns: `metrics`: the values of the last epoch by name; none if the module logs nothing.
    """

    def __init__(self, plan: RankPlan, metric: str, measured: Sequence[Any]) -> None:
        self._plan, self._metric, self._measured = plan, metric, measured
        self.values = LoggedValues()
        self._examples: int | None = None
        self._validated: dict[str, bool] = {}
        self.columns: dict[str, Any] = {}

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Tell `log` how many examples a value stands for."""

        def log_weighted(
            log: Callable[..., None], name: str, value: Any, *args: Any, **settings: Any
        ) -> None:
            if self._examples is not None:
                settings.setdefault("batch_size", self._examples)
            if not isinstance(value, Metric):
                by_step = trainer.training and settings.get("on_step") is not False
                settings["sync_dist"] = settings.get("sync_dist", False) and by_step
            log(name, value, *args, **settings)

        run_class(pl_module).wrap("log", log_weighted)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Every training micro-batch has the same number of examples."""
        self._examples = self._plan.split(trainer.current_epoch).micro_batch

    def on_validation_batch_start(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """A validation batch has as many examples as its loader says, if the loader says so."""
        loaders: Any = trainer.val_dataloaders
        if isinstance(loaders, Mapping):
            loaders = list(loaders.values())
        loader = loaders[dataloader_idx] if isinstance(loaders, Sequence) else loaders
        sizes = getattr(loader, "sizes", None)
        self._examples = sizes[batch_idx] if sizes else None

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Values logged outside of batches have no number of examples."""
        self._examples = None

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Validation replaces a training step's value of the same name."""
        self._validated = has_epoch_values(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Gather the epoch's values.

        Raises:
            ValueError: if the run's metric is not among them, or not of the epoch.
        """
        self.values.merge(trainer)  # what the module logged in its own hook
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
        of_epoch = {**has_epoch_values(trainer), **self._validated}
        self._validated = {}
        if self._metric not in known and not of_epoch.get(self._metric, True):
            msg = (
                f"{METRIC_NOT_LOGGED} for whole epochs; got metric={self._metric}, which it logs "
                "for steps only: a value of the last micro-batch, which depends on the layout. Log "
                "it with on_epoch=True, or choose another."
            )
            raise ValueError(msg)
