"""What a module logs for an epoch: over all ranks, and over both parts of a resumed epoch."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Callback
from torch import Tensor

from lightning_modules.gradients.rank_states import gather_states, own_state
from lightning_modules.process.world import num_ranks
from sweeper.upstream.lightnings import (
    add_to_value,
    computed,
    epoch_results,
    reduced_value,
    result_names,
    set_computed,
)

_JOINED: Any = {"mean": np.add, "sum": np.add, "max": np.maximum, "min": np.minimum}


class _Logged(NamedTuple):
    """A value so far, reduced by `reduce_fx`; for a mean, the weighted sum and the total weight."""

    reduce_fx: str
    total: float
    weight: float
    names: list[str]


class LoggedValues(Callback):
    """Replaces this rank's logged values by those over all ranks, matched by name.

    Lightning reduces values one by one, in the order in which each rank logged them: it waits
    forever if a rank logged something else, and it rounds the mean number of examples down. Of a
    resumed epoch it only knows the second part.

    It runs before anything that reads what was logged.
    """

    def __init__(self) -> None:
        self._trainer: Trainer | None = None
        self._is_in_epoch = False
        self._merged: dict[str, Tensor] = {}
        self._behind: dict[str, _Logged] = {}

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Remember the Trainer, in which Lightning keeps what is logged."""
        self._trainer = trainer

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Add the values from before a mid-epoch resume."""
        self._is_in_epoch = True
        for key, kept in epoch_results(trainer) if self._behind else ():
            if (behind := self._behind.pop(key, None)) is not None:
                both = _joined(behind, _logged(trainer, kept))
                is_mean = both.reduce_fx == "mean"
                add_to_value(kept, both.total, round(behind.weight) if is_mean else 0)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Merge what was logged in validation batches."""
        self.merge(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Merge what was logged at the end of validation."""
        self.merge(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Merge what was logged in the epoch, including what was only logged before a resume."""
        self._is_in_epoch = False
        self.merge(trainer, self._behind)
        self._behind = {}

    def merge(self, trainer: Trainer, more: Mapping[str, _Logged] | None = None) -> None:
        """Give every rank the values over all ranks; a collective call.

        Args:
            trainer: its loop has ended.
            more: values that were logged before this process began.
        """
        if num_ranks() == 1 and not more:
            return
        own = {key: kept for key, kept in epoch_results(trainer) if not self._has_merged(key, kept)}
        logged = _all_of([more or {}, {key: _logged(trainer, one) for key, one in own.items()}])
        values: dict[str, Tensor] = {}
        for key, one in _all_of(gather_states(logged)).items():
            value = torch.tensor(one.total, dtype=torch.float64) / one.weight
            if key in own:
                value = value.to(own[key].value)
                self._merged[key] = value
                set_computed(own[key], value)
            values |= dict.fromkeys(one.names, value)
        trainer.callback_metrics.update(values)

    def _has_merged(self, key: str, kept: Any) -> bool:
        value = computed(kept)
        return value is not None and value is self._merged.get(key)

    def state_dict(self) -> dict[str, Any]:
        """Within an epoch, every rank's values so far."""
        if self._trainer is None or not self._is_in_epoch:
            return {"ranks": []}
        own = {key: _logged(self._trainer, kept) for key, kept in epoch_results(self._trainer)}
        ranks = gather_states(_all_of([self._behind, own]))
        return {"ranks": [{key: list(one) for key, one in rank.items()} for rank in ranks]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned, on any number of ranks."""
        ranks = [{key: _Logged(*one) for key, one in rank.items()} for rank in state_dict["ranks"]]
        if ranks:
            self._behind = own_state(ranks, lambda states, share: _all_of(states if share else []))


def _logged(trainer: Trainer, result: Any) -> _Logged:
    return _Logged(*reduced_value(result), result_names(trainer, result))


def _all_of(parts: Iterable[Mapping[str, _Logged]]) -> dict[str, _Logged]:
    joined: dict[str, _Logged] = {}
    for part in parts:
        for key, one in part.items():
            joined[key] = _joined(joined[key], one) if key in joined else one
    return joined


def _joined(one: _Logged, other: _Logged) -> _Logged:
    weight = one.weight + other.weight if one.reduce_fx == "mean" else 1.0
    total = float(_JOINED[one.reduce_fx](one.total, other.total))
    return _Logged(one.reduce_fx, total, weight, one.names)
