"""What a module logs for an epoch: over all ranks, and over both parts of a resumed epoch."""

# Lightning has no public names for what it keeps of logged values.
# pyright: reportPrivateUsage=false

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Callback
from torch import Tensor

from lightning_modules.gradients.rank_states import gather_states, own_state
from lightning_modules.process.world import num_ranks

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
        for key, kept in _kept(trainer) if self._behind else ():
            if (behind := self._behind.pop(key, None)) is not None:
                both = _joined(behind, _logged(trainer, kept))
                kept.value = torch.full_like(kept.value, both.total)
                if both.reduce_fx == "mean":
                    kept.cumulated_batch_size += round(behind.weight)

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
        own = {key: kept for key, kept in _kept(trainer) if not self._has_merged(key, kept)}
        logged = _all_of([more or {}, {key: _logged(trainer, one) for key, one in own.items()}])
        values: dict[str, Tensor] = {}
        for key, one in _all_of(gather_states(logged)).items():
            value = torch.tensor(one.total, dtype=torch.float64) / one.weight
            if key in own:
                value = value.to(own[key].value)
                self._merged[key] = own[key]._computed = value
            values |= dict.fromkeys(one.names, value)
        trainer.callback_metrics.update(values)

    def _has_merged(self, key: str, kept: Any) -> bool:
        return kept._computed is not None and kept._computed is self._merged.get(key)

    def state_dict(self) -> dict[str, Any]:
        """Within an epoch, every rank's values so far."""
        if self._trainer is None or not self._is_in_epoch:
            return {"ranks": []}
        own = {key: _logged(self._trainer, kept) for key, kept in _kept(self._trainer)}
        ranks = gather_states(_all_of([self._behind, own]))
        return {"ranks": [{key: list(one) for key, one in rank.items()} for rank in ranks]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned, on any number of ranks."""
        ranks = [{key: _Logged(*one) for key, one in rank.items()} for rank in state_dict["ranks"]]
        if ranks:
            self._behind = own_state(ranks, lambda states, share: _all_of(states if share else []))


def _kept(trainer: Trainer) -> Iterator[tuple[str, Any]]:
    """Lightning's accumulated values of the current loop's epoch, with its own keys."""
    for key, kept in (trainer._results or {}).items():  # private: Lightning Trainer._results
        meta = kept.meta
        if kept.is_tensor and meta.on_epoch and not kept.has_reset and not meta.sync.rank_zero_only:
            yield key, kept


def have_epoch_values(trainer: Trainer) -> dict[str, bool]:
    """By name logged in the current loop, whether it has a value of the epoch, or of a batch."""
    results, found = trainer._results, dict[str, bool]()
    for kept in results.values() if results else ():
        # private: Lightning _ResultCollection._forked_name
        names = results._forked_name(kept, on_step=False)  # type: ignore[union-attr]
        found |= {name: found.get(name, False) or kept.meta.on_epoch for name in names}
    return found


def _logged(trainer: Trainer, kept: Any) -> _Logged:
    reduce_fx = kept.meta.reduce_fx.__name__
    weight = float(kept.cumulated_batch_size) if reduce_fx == "mean" else 1.0
    # private: Lightning _ResultCollection._forked_name
    names = list(trainer._results._forked_name(kept, on_step=False))  # type: ignore[union-attr]
    return _Logged(reduce_fx, float(kept.value), weight, names)


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
