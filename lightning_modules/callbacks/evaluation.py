"""Validation after each epoch: each example counted once, over all ranks."""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Callback

from lightning_modules.callbacks.epoch_means import EpochSums
from lightning_modules.callbacks.steps import examples_in
from lightning_modules.callbacks.weight_average import WeightAverage
from lightning_modules.data.batches import Data, val_batches
from lightning_modules.rank_plan import RankPlan
from sweeper.spec.batch import BatchSplit


class Evaluation(Callback):
    """Validation means of each epoch, from the sums that the module's `validation_step` returns.

    Lightning's own validation loop runs before the epoch's end, when running statistics and
    weights of ranks are not merged yet, and pads ranks with examples shown twice.

    Args:
        data: its validation part is evaluated.
        plan: of the run's batches.
        names: of the sums.
        num_examples: to evaluate, over all ranks [examples].
        in_whole_micro_batches: as `val_bounds`.
        average: evaluated in place of the weights, if it is kept.

    Attributes:
        columns: of the last epoch, each name with `val_` before it.
    """

    def __init__(
        self,
        data: Data,
        plan: RankPlan,
        names: Sequence[str],
        *,
        num_examples: int,
        in_whole_micro_batches: bool,
        average: WeightAverage | None,
    ) -> None:
        self._data, self._plan, self._names = data, plan, names
        self._num_examples, self._in_whole = num_examples, in_whole_micro_batches
        self._average = average
        self.columns: dict[str, float | None] = {}

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Evaluate the model, or the average of its weights."""
        bounds = val_bounds(
            self._num_examples,
            split=self._plan.split(trainer.current_epoch),
            rank=self._plan.rank,
            in_whole_micro_batches=self._in_whole,
        )
        with self._average.applied(pl_module) if self._average else nullcontext():
            means = self._means(trainer, pl_module, val_batches(self._data, bounds))
        self.columns = {f"val_{name}": mean for name, mean in means.items()}

    @torch.no_grad()
    def _means(
        self, trainer: Trainer, pl_module: LightningModule, batches: Iterator[Any]
    ) -> dict[str, float]:
        plugin = trainer.precision_plugin
        sums = EpochSums(self._names, pl_module.device)
        pl_module.eval()
        for index, batch in enumerate(batches):
            moved = trainer.strategy.batch_to_device(plugin.convert_input(batch))
            with plugin.val_step_context():
                outputs: Any = pl_module.validation_step(moved, index)
            sums.add(outputs, examples_in(moved))
        pl_module.train()
        return sums.means()


def val_bounds(
    num_examples: int, *, split: BatchSplit, rank: int, in_whole_micro_batches: bool
) -> Iterator[tuple[int, int]]:
    """First example of each of a rank's micro-batches, and the one after its last.

    Args:
        num_examples: to evaluate, over all ranks [examples].
        split: micro-batch and ranks.
        rank: this process among the ranks.
        in_whole_micro_batches: give ranks whole micro-batches instead of equal shares, so that each
            pass has the same examples on every number of ranks.
    """
    unit = split.micro_batch if in_whole_micro_batches else 1
    units = -(-num_examples // unit)
    start, stop = (
        min(num_examples, units * end // split.world_size * unit) for end in (rank, rank + 1)
    )
    for first in range(start, stop, split.micro_batch):
        yield first, min(first + split.micro_batch, stop)
