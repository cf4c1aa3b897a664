"""What a module logs: over all examples of an epoch, on all ranks, also of a resumed epoch."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

import numpy as np
import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Callback
from torch import Tensor
from torchmetrics import Metric

from lightning_modules.modules.steps import AroundEvaluation, val_loader
from lightning_modules.process.world import gather_states, num_ranks, restore_state
from lightning_modules.rank_plan import RankPlan
from lightning_modules.run_class import run_class
from sweeper.spec.worker_args import METRIC_NOT_LOGGED
from sweeper.upstream.lightnings import (
    add_to_value,
    computed,
    epoch_results,
    has_epoch_values,
    is_validated,
    reduced_value,
    result_names,
    set_computed,
)
from sweeper.upstream.torchs import metric_state, set_metric_state

_JOINED: Any = {"mean": np.add, "sum": np.add, "max": np.maximum, "min": np.minimum}


class _Logged(NamedTuple):
    """A value so far, reduced by `reduce_fx`; for a mean, the weighted sum and the total weight."""

    reduce_fx: str
    total: float
    weight: float
    names: list[str]


class LoggedValues(AroundEvaluation):
    """Gathers all that a module has logged, over all ranks; a run must log its metric.

    Lightning weights logged values by batch sizes that it guesses. Here it gets the number of
    examples. Lightning reduces values singly, in the order in which each rank logged them: it waits
    forever if a rank logged something else, and it rounds the mean number of examples down. Here
    values are matched by name. Of a resumed epoch Lightning only knows the second part; here the
    values from before the resume are added.

    It runs before anything that reads what was logged. The epoch's metrics are gathered after the
    module's own hook, which may log at the end of an epoch. The `measured` callbacks have columns
    that are metrics too.
    """

    def __init__(self, plan: RankPlan, metric: str, measured: Sequence[Any] = ()) -> None:
        self._plan, self._metric, self._measured = plan, metric, measured
        self._trainer: Trainer | None = None
        self._examples: int | None = None  # of the current batch
        self._uncounted: list[tuple[Metric, dict[str, Any]]] = []  # before a batch of that kind
        self._validated: dict[str, bool] = {}
        self._is_in_epoch = False
        self._merged: dict[str, Tensor] = {}
        self._behind: dict[str, _Logged] = {}  # from before a resume
        self.columns: dict[str, Any] = {}  # `metrics`: last evaluation's values by name, if any

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Tell `log` how many examples a value stands for; act after the module's last hook."""
        self._trainer = trainer

        def log_weighted(
            log: Callable[..., None], name: str, value: Any, *args: Any, **settings: Any
        ) -> None:
            if self._examples is not None:
                settings.setdefault("batch_size", self._examples)
            if not isinstance(value, Metric):
                if self._examples == 0:  # another rank's batch, evaluated for company
                    return
                # values of an epoch are merged here: Lightning would wait for a rank without one
                by_step = trainer.training and settings.get("on_step") is not False
                settings["sync_dist"] = settings.get("sync_dist", False) and by_step
            log(name, value, *args, **settings)

        added = run_class(pl_module)
        added.wrap("log", log_weighted)
        added.follow_hook("on_train_epoch_end", lambda: self._gather_metrics(trainer))

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Its examples weight what is logged of it."""
        self._examples = self._plan.num_examples(trainer.current_epoch, batch_idx)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Add the values from before a mid-epoch resume."""
        self._is_in_epoch = True
        for key, kept in epoch_results(trainer) if self._behind else ():
            if (behind := self._behind.pop(key, None)) is not None:
                both = _join(behind, _read_value(trainer, kept))
                is_mean = both.reduce_fx == "mean"
                add_to_value(kept, both.total, round(behind.weight) if is_mean else 0)

    def on_validation_batch_start(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """A validation batch has as many examples as its loader says, if the loader says so."""
        sizes = getattr(val_loader(trainer, dataloader_idx), "sizes", None)
        self._examples = sizes[batch_idx] if sizes else None
        if self._examples == 0:
            metrics = [layer for layer in pl_module.modules() if isinstance(layer, Metric)]
            self._uncounted = [(m, deepcopy(metric_state(m))) for m in metrics]

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Have metrics forget a batch that does not count."""
        for metric, state in self._uncounted:
            set_metric_state(metric, state)
        self._uncounted = []

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Merge what was logged in validation batches."""
        self._examples = None  # values logged outside of batches have none
        self._merge_ranks(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Merge what was logged at the end of validation."""
        self._merge_ranks(trainer)
        self._validated = has_epoch_values(trainer)  # replaces a training value of the same name

    def on_evaluated(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Gather what was logged in a validation within an epoch.

        ValueError if the run's metric is not among it, and nothing could log it later.
        """
        if not self._is_in_epoch:
            return
        logged = self._gather(trainer, self._validated)
        callbacks: list[Any] = trainer.callbacks  # pyright: ignore[reportAttributeAccessIssue]
        if self._plan.rank == 0 and not any(map(_acts_at_ends, (pl_module, *callbacks))):
            self._check_metric({*logged, *trainer.callback_metrics, *has_epoch_values(trainer)})

    def _gather(self, trainer: Trainer, names: Iterable[str]) -> dict[str, float]:
        values = trainer.callback_metrics
        logged = {name: float(values[name]) for name in names if name in values}
        self.columns = {"metrics": logged} if logged else {}
        return logged

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Merge what was logged in the epoch, including what was only logged before a resume."""
        self._is_in_epoch = False
        self._merge_ranks(trainer, self._behind)
        self._behind = {}

    def _gather_metrics(self, trainer: Trainer) -> None:
        """Gather the epoch's values once the module has logged all of them, if it is evaluated.

        ValueError if the run's metric is not among them, or not of the epoch.
        """
        self._merge_ranks(trainer)  # what the module logged in its own hook
        if not is_validated(trainer):
            return
        logged = self._gather(trainer, list(trainer.callback_metrics))
        known = self._check_metric(logged)
        of_epoch = {**has_epoch_values(trainer), **self._validated}
        self._validated = {}
        if self._metric not in known and not of_epoch.get(self._metric, True):
            msg = (
                f"{METRIC_NOT_LOGGED} for whole epochs; got metric={self._metric}, which it logs "
                "for steps only: a value of the last micro-batch, which depends on the layout. Log "
                "it with on_epoch=True, or choose another."
            )
            raise ValueError(msg)

    def _check_metric(self, logged: Iterable[str]) -> set[str]:
        """Names of our own measures; ValueError if the metric is neither among them nor logged."""
        known = {name for callback in self._measured for name in callback.columns}
        if self._metric not in (found := known.union(logged)):
            names = ", ".join(sorted(found))
            msg = (
                f"{METRIC_NOT_LOGGED}; got metric={self._metric}, it logged "
                f"{names or 'nothing'}. Choose one of them, or log it."
            )
            raise ValueError(msg)
        return known

    def _merge_ranks(self, trainer: Trainer, more: Mapping[str, _Logged] | None = None) -> None:
        """Give every rank the values over all ranks, and `more` from before; a collective call."""
        if num_ranks() == 1 and not more:
            return
        own = {  # but what an earlier call in this epoch has merged
            key: result
            for key, result in epoch_results(trainer)
            if (value := computed(result)) is None or value is not self._merged.get(key)
        }
        logged = _join_all([more or {}, {key: _read_value(trainer, own[key]) for key in own}])
        values: dict[str, Tensor] = {}
        for key, joined in _join_all(gather_states(logged)).items():
            value = torch.tensor(joined.total, dtype=torch.float64) / joined.weight
            if key in own:
                value = value.to(own[key].value)
                self._merged[key] = value
                set_computed(own[key], value)
            values |= dict.fromkeys(joined.names, value)
        trainer.callback_metrics.update(values)

    def state_dict(self) -> dict[str, Any]:
        """Within an epoch, every rank's values so far."""
        if self._trainer is None or not self._is_in_epoch:
            return {"ranks": []}
        own = {key: _read_value(self._trainer, kept) for key, kept in epoch_results(self._trainer)}
        ranks = gather_states(_join_all([self._behind, own]))
        return {"ranks": [{key: list(rank[key]) for key in rank} for rank in ranks]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned, on any number of ranks."""
        ranks = [{key: _Logged(*rank[key]) for key in rank} for rank in state_dict["ranks"]]
        if ranks:
            self._behind = restore_state(
                ranks, lambda states, share: _join_all(states if share else [])
            )


def _acts_at_ends(hooked: LightningModule | Callback) -> bool:
    """Whether it is the user's and has a hook for the end of epochs, where it may log."""
    kind: Any = getattr(type(hooked), "users_class", type(hooked))
    package = kind.on_train_epoch_end.__module__.partition(".")[0]
    return package not in ("lightning", "lightning_modules", "pytorch_lightning")


def _read_value(trainer: Trainer, result: Any) -> _Logged:
    return _Logged(*reduced_value(result), result_names(trainer, result))


def _join_all(parts: Iterable[Mapping[str, _Logged]]) -> dict[str, _Logged]:
    joined: dict[str, _Logged] = {}
    for part in parts:
        for key, logged in part.items():
            joined[key] = _join(joined[key], logged) if key in joined else logged
    return joined


def _join(first: _Logged, second: _Logged) -> _Logged:
    weight = first.weight + second.weight if first.reduce_fx == "mean" else 1.0
    total = float(_JOINED[first.reduce_fx](first.total, second.total))
    return _Logged(first.reduce_fx, total, weight, first.names)
