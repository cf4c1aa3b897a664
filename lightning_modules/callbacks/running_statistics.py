"""BatchNorm's running statistics: merged over ranks once per epoch, shown merged within it."""

from collections.abc import Sequence
from typing import Any

from pytorch_lightning import LightningModule, Trainer
from torch import Tensor

from lightning_modules.layers.batch_position import StepPosition
from lightning_modules.layers.ghost_batchnorm import ghost_batchnorms
from lightning_modules.modules.steps import AroundEvaluation
from lightning_modules.process.world import gather_states, restore_state
from lightning_modules.rank_plan import RankPlan


class RunningStatistics(AroundEvaluation):
    """Merges the statistics of all ranks at the end of each epoch, before it is evaluated.

    An evaluation within an epoch sees merged statistics too, but leaves no trace in them: a run
    that is evaluated more often has the same ones, to the last bit.
    """

    def __init__(self, plan: RankPlan, position: StepPosition) -> None:
        self._plan, self._position = plan, position
        self._module: LightningModule | None = None
        self._loaded: list[dict[str, Any]] = []
        self._kept: list[tuple[Tensor, Tensor]] = []  # while others are shown

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Remember the module."""
        self._module = pl_module

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Restore a resumed epoch's terms; not sooner, as DDP copies rank 0's buffers to all."""
        # none are loaded, unless the run resumes within an epoch
        for layer, state in zip(ghost_batchnorms(pl_module), self._loaded, strict=False):
            layer.load_terms(state)
        self._loaded = []

    def on_steps_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Merge the statistics of all ranks, within an epoch for the evaluation only."""
        epoch = trainer.current_epoch
        steps = self._plan.steps_in(epoch, trainer.fit_loop.batch_idx + 1)
        self._merge(trainer, is_shown=steps < self._plan.steps(epoch))

    def _merge(self, trainer: Trainer, *, is_shown: bool) -> None:
        epoch, plan = trainer.current_epoch, self._plan
        steps = plan.steps_in(epoch, trainer.fit_loop.batch_idx + 1)
        spans = plan.examples_in(epoch, steps) // plan.bn_span
        for layer in self._position.layers:  # copies, too, which the module may hold in a list
            if is_shown:
                self._kept += [(buffer, buffer.clone()) for buffer in layer.running_statistics]
            layer.merge_ranks(spans, keeps_terms=is_shown)

    def on_evaluated(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put back the statistics of the epoch's start, if others were shown."""
        for buffer, kept in self._kept:
            buffer.copy_(kept)
        self._kept = []

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Merge the statistics of an epoch that ended early, at an evaluation."""
        super().on_train_epoch_end(trainer, pl_module)
        self._merge(trainer, is_shown=False)

    def state_dict(self) -> dict[str, Any]:
        """Within an epoch, each rank's statistics so far."""
        assert self._module is not None, "it is trained"
        layers = list(ghost_batchnorms(self._module))
        if not any(layer.state.counted for layer in layers):
            return {}
        return {"ranks": gather_states([layer.state_of_terms() for layer in layers])}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned, on any number of ranks."""
        self._loaded = restore_state(state_dict["ranks"], _add_ranks)


def _add_ranks(of_ranks: Sequence[list[dict[str, Any]]], share: int) -> list[dict[str, Any]]:
    """Each layer's terms summed over ranks, decayed to the same point of the epoch."""
    merged: list[dict[str, Any]] = []
    for layer in zip(*of_ranks, strict=True):
        end = max(part["spans"] for part in layer)
        terms = sum(part["keep"] ** (end - part["spans"]) * part["terms"] for part in layer)
        merged.append({**layer[0], "spans": end, "terms": share * terms})
    return merged
