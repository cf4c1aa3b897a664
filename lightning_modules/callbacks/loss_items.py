"""Losses that are means over items, such as tokens or boxes: over all items of a whole step."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
import torch.distributed as dist
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Callback
from torch import Tensor

from lightning_modules.data.batch_counts import item_count
from lightning_modules.process.world import num_ranks
from lightning_modules.rank_plan import RankPlan
from lightning_modules.run_class import run_class


@dataclass(frozen=True, slots=True)
class Share:
    """A micro-batch's items, and the mean over all micro-batches of its step, on all ranks."""

    items: float
    mean: float


class LossItems(Callback):
    """Weights each micro-batch's loss by its items, so that a step's loss is the mean over items.

    Accumulation and DDP average the losses of micro-batches and ranks. With the weight
    ``items / mean items`` the average is ``sum(items * loss) / sum(items)``: the loss of the whole
    batch. The items of a step are counted on the CPU before its first micro-batch is trained, and
    summed over ranks in an exchange between CPUs, which waits for no device.

    A micro-batch without items gets a gradient of zero, whatever its loss (usually 0/0).
    `given` says how the items of a batch are counted: the argument of `item_count`.
    """

    def __init__(self, given: str, plan: RankPlan) -> None:
        self._count, self._plan = item_count(given), plan
        self.share = self._fetched = Share(1, 1)  # of the micro-batch that is trained on
        # NCCL would sum on the device, and the CPU would have to wait for it.
        on_device = dist.is_initialized() and dist.get_backend() != "gloo"
        self._group: Any = dist.new_group(backend="gloo") if on_device else None

    def windows(self, batches: Iterator[Any], epoch: int, step: int) -> Iterator[Any]:
        """The same micro-batches; all those of a step are fetched and counted before its first.

        They begin with a 0-based step of a 0-based epoch.

        ValueError if the micro-batches of a step have no item.
        """
        split = self._plan.split(epoch, step)
        while window := list(islice(batches, split.accumulation_steps)):
            items = [self._count(batch) for batch in window]
            total = torch.tensor(sum(items), dtype=torch.float64)
            if num_ranks() > 1:
                dist.all_reduce(total, group=self._group)
            if not total:
                msg = (
                    "every batch must have an item that its loss is a mean over; got a batch of "
                    f"{split.global_batch} examples without any, in epoch {epoch + 1}. Correct "
                    "loss_items, leave such examples out, or use a larger batch."
                )
                raise ValueError(msg)
            if self._plan.filled and total != (planned := self._plan.filled(epoch).tokens[step]):
                msg = (
                    "with batch_unit=tokens, loss_items must count as many tokens of a batch as of "
                    f"its examples by themselves; got {float(total):g} of a step of {planned}, in "
                    f"epoch {epoch + 1}. Count neither padding nor what is drawn."
                )
                raise ValueError(msg)
            mean = float(total) / (len(window) * split.world_size)
            for batch, count in zip(window, items, strict=True):
                self._fetched = Share(count, mean)
                yield batch
            step += 1
            split = self._plan.split(epoch, step)

    def shares(self, micro_batches: Sequence[Any]) -> list[Share]:
        """Of micro-batches that are a batch together."""
        items = [self._count(batch) for batch in micro_batches]
        return [Share(count, sum(items) / len(items)) for count in items]

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Weight the loss that `training_step` returns."""

        def weigh_outputs(step: Any, *args: Any, **kwargs: Any) -> Any:
            outputs = step(*args, **kwargs)
            if outputs is None:
                return None
            loss: Tensor = outputs["loss"] if isinstance(outputs, Mapping) else outputs
            if self.share.items:
                loss = loss * (self.share.items / self.share.mean)
            else:
                # not loss * 0, which is nan where the loss is
                weights = [weight for weight in pl_module.parameters() if weight.requires_grad]
                loss = torch.stack([weight.sum() for weight in weights]).sum() * 0.0
            return {**outputs, "loss": loss} if isinstance(outputs, Mapping) else loss

        run_class(pl_module).wrap("training_step", weigh_outputs)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Use the share fetched last; a hook may have iterated over training data before that."""
        self.share = self._fetched
