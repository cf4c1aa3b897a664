"""Means over the examples of an epoch, on all ranks, of what a module's steps return."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Callback
from torch import Tensor

from lightning_modules.callbacks.loss_items import LossItems
from lightning_modules.callbacks.steps import AfterSteps
from lightning_modules.callbacks.weight_average import WeightAverage
from lightning_modules.data.batch_counts import count_examples
from lightning_modules.process.world import all_reduce, gather_states, num_ranks, own_state
from sweeper.upstream.lightnings import validate_after_last_step


class EpochSums:
    """Sums over examples on this rank, kept on the device until they are read.

    Args:
        state: what `state` returned, to continue from; None to start at zero.
    """

    def __init__(
        self, names: Sequence[str], device: torch.device, state: Tensor | None = None
    ) -> None:
        *totals, examples = torch.zeros(len(names) + 1) if state is None else state
        on_device = [total.to(device, torch.float64, copy=True) for total in totals]
        self._totals = dict(zip(names, on_device, strict=True))
        self._examples = examples.to("cpu", torch.float64, copy=True)

    def add(self, sums: Mapping[str, Tensor], examples: float) -> None:
        """Add a micro-batch.

        Args:
            sums: over its examples, by name.
            examples: number in the micro-batch, of examples or of whatever else is averaged over
                [examples].
        """
        for name, total in self._totals.items():
            total.add_(sums[name])
        self._examples.add_(examples)

    def means(self) -> dict[str, float]:
        """Means over all examples on all ranks, by name; empty without examples."""
        *totals, examples = all_reduce(self.state()).tolist()
        if not examples:
            return {}
        return {name: total / examples for name, total in zip(self._totals, totals, strict=True)}

    def state(self) -> Tensor:
        """The sums in the order of their names, then the examples; float64, on the device."""
        totals = list(self._totals.values())
        return torch.stack([*totals, self._examples.to(totals[0])])


class TrainingMetrics(AfterSteps):
    """Training means of each epoch, from the `sums` or the loss that `training_step` returns.

    Args:
        names: keys of `sums`; only the loss for a module that returns none.
        items: counts what that loss is a mean over; None for examples.

    Attributes:
        columns: means of the last epoch, by name with the prefix `train_`.
    """

    def __init__(self, names: Sequence[str], items: LossItems | None = None) -> None:
        self._names, self._items = names, items
        self._sums = EpochSums(names, torch.device("cpu"))
        self.columns: dict[str, float | None] = {}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Move the sums to the module's device."""
        self._sums = EpochSums(self._names, pl_module.device, self._sums.state())

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Add the micro-batch's sums."""
        if isinstance(outputs, Mapping) and "sums" in outputs:
            self._sums.add(outputs["sums"], count_examples(batch))
        elif isinstance(outputs, Mapping) and "loss" in outputs:  # Lightning divided it
            loss = outputs["loss"].detach().reshape(())  # it may be of shape (1,)
            if self._items is None:  # weighted by its part of the step: a resume may change that
                loss = loss.double() / num_ranks()
                part = 1 / (trainer.accumulate_grad_batches * num_ranks())
                self._sums.add({"loss": loss}, part)
                return
            share = self._items.share  # the loss was also divided by its micro-batches' mean items
            for factor in (trainer.accumulate_grad_batches, share.mean):
                loss = loss if factor == 1 else loss * factor
            self._sums.add({"loss": loss}, share.items)

    def on_steps_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Average over the epoch and start new sums."""
        self.columns = {f"train_{name}": mean for name, mean in self._sums.means().items()}
        self._sums = EpochSums(self._names, pl_module.device)

    def state_dict(self) -> dict[str, Any]:
        """Every rank's sums of the epoch so far."""
        return {"ranks": gather_states(self._sums.state())}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned, on any number of ranks."""
        state = own_state(
            state_dict["ranks"], lambda ranks, share: share * torch.stack([*ranks]).sum(0)
        )
        self._sums = EpochSums(self._names, torch.device("cpu"), state)


class Evaluation(Callback):
    """Validates at the end of each epoch, and averages the `sums` that validation steps return.

    Lightning's own loop validates; `AfterSteps` callbacks have prepared the module before it
    starts.

    Args:
        names: of the sums; each is a metric of the module.
        average: evaluated in place of the weights; None if no average is kept.

    Attributes:
        columns: means of the last epoch, by name with the prefix `val_`.
    """

    def __init__(self, names: Sequence[str], *, average: WeightAverage | None) -> None:
        self._names, self._average = names, average
        self._sums = EpochSums(names, torch.device("cpu"))
        self.columns: dict[str, float | None] = {}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Have Lightning validate after the last step, however many an epoch has."""
        validate_after_last_step(trainer)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start new sums, and put the average in place of the weights."""
        self._sums = EpochSums(self._names, pl_module.device)
        if self._average:
            self._average.swap(pl_module)

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Add the micro-batch's sums, if the module returns them."""
        is_own = getattr(trainer.val_dataloaders, "counts", True)
        if is_own and isinstance(outputs, Mapping) and "sums" in outputs:
            self._sums.add(outputs["sums"], count_examples(batch))

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put the weights back, and average the sums."""
        if self._average:
            self._average.swap(pl_module)
        self.columns = {f"val_{name}": mean for name, mean in self._sums.means().items()}
