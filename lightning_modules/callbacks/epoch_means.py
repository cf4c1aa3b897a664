"""Means over examples, on all ranks, of what a module's steps return between evaluations."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Callback
from torch import Tensor

from lightning_modules.callbacks.loss_items import LossItems
from lightning_modules.data.batch_counts import count_examples
from lightning_modules.methods.weight_average import WeightAverage
from lightning_modules.modules.steps import (
    AroundEvaluation,
    end_evaluation,
    ends_step,
    is_in_epoch,
    list_loaders,
    val_loader,
)
from lightning_modules.optimizers.sharded_strategy import ShardedStrategy
from lightning_modules.process.device import is_out_of_memory
from lightning_modules.process.world import all_reduce, gather_states, num_ranks, restore_state
from sweeper.upstream.lightnings import (
    call_after_micro_batch,
    is_validated,
    never_validate,
    validate_after,
)


class EpochSums:
    """Sums over examples on this rank, kept on the device; they continue from a `state()` or 0."""

    def __init__(
        self, names: Sequence[str], device: torch.device, state: Tensor | None = None
    ) -> None:
        *totals, examples = torch.zeros(len(names) + 1) if state is None else state
        on_device = [total.to(device, torch.float64, copy=True) for total in totals]
        self._totals = dict(zip(names, on_device, strict=True))
        self._examples = examples.to("cpu", torch.float64, copy=True)  # where it is counted

    def add(self, sums: Mapping[str, Tensor], examples: float) -> None:
        """Add a micro-batch: its sums by name, and its number of what is averaged over."""
        for name, total in self._totals.items():
            total.add_(sums[name])
        self._examples.add_(examples)

    def means(self) -> dict[str, float]:
        """Means over all examples on all ranks, by name; empty without examples."""
        *totals, examples = all_reduce(self.state()).tolist()
        if not examples:
            return {}
        return {name: total / examples for name, total in zip(self._totals, totals, strict=True)}

    def total(self, name: str) -> Tensor:
        """A sum on this rank so far; 0 without one of that name."""
        return self._totals[name] if name in self._totals else torch.zeros(())

    def state(self) -> Tensor:
        """The sums in the order of their names, then the examples; float64, on the device."""
        totals = list(self._totals.values())
        return torch.stack([*totals, self._examples.to(totals[0])])


class TrainingMetrics(AroundEvaluation):
    """Training means since the last evaluation, of the `sums` or the loss of `training_step`.

    Args:
        names: keys of `sums`; only the loss for a module that returns none.
        items: counts what that loss is a mean over; None for examples.
    """

    def __init__(self, names: Sequence[str], items: LossItems | None = None) -> None:
        self._names, self._items = names, items
        self._sums = EpochSums(names, torch.device("cpu"))
        self.columns: dict[str, float | None] = {}  # means up to the last evaluation

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

    @property
    def total_loss(self) -> Tensor:
        """This rank's sum of losses since the last evaluation: not finite if one was not."""
        return self._sums.total("loss")

    def on_steps_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Average before an evaluation, and start new sums."""
        if not is_validated(trainer):
            return
        self.columns = {f"train_{name}": mean for name, mean in self._sums.means().items()}
        self._sums = EpochSums(self._names, pl_module.device)

    def state_dict(self) -> dict[str, Any]:
        """Every rank's sums since the last evaluation."""
        return {"ranks": gather_states(self._sums.state())}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned, on any number of ranks."""
        state = restore_state(
            state_dict["ranks"], lambda ranks, share: share * torch.stack([*ranks]).sum(0)
        )
        self._sums = EpochSums(self._names, torch.device("cpu"), state)


class Evaluation(Callback):
    """Validates where the plan says, and averages the `sums` that validation steps return.

    Lightning's own loop validates; `AroundEvaluation` callbacks have prepared the module before it
    starts.

    Args:
        is_due: whether after the step of a micro-step of an epoch, both 0-based.
        names: of the sums; each is a metric of the module.
        average: evaluated in place of the weights; None if no average is kept.
    """

    def __init__(
        self,
        is_due: Callable[[int, int], bool],
        names: Sequence[str],
        *,
        average: WeightAverage | None,
    ) -> None:
        self._is_due, self._names, self._average = is_due, names, average
        self._sums = EpochSums(names, torch.device("cpu"))
        self.columns: dict[str, float | None] = {}  # means of the last evaluation

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Have the callbacks finish an evaluation within an epoch once it is over."""

        def finish() -> None:
            if is_validated(trainer) and is_in_epoch(trainer):
                end_evaluation(trainer, pl_module)

        call_after_micro_batch(trainer, finish)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A resumed run has been evaluated where it left off."""
        never_validate(trainer)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Have Lightning validate after the micro-batch, if it ends a step to evaluate after."""
        is_due = ends_step(trainer, batch_idx) and self._is_due(trainer.current_epoch, batch_idx)
        validate_after(trainer, batch_idx, is_due=is_due)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start new sums, and put the average in place of the weights."""
        self._sums = EpochSums(self._names, pl_module.device)
        if self._average:
            self._average.swap(pl_module)

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """ValueError if memory does not suffice for validation: no other layout would help."""
        if trainer.validating and is_out_of_memory(exception):
            sizes = [
                getattr(loader, "batch_size", 1) for loader in list_loaders(trainer.val_dataloaders)
            ]
            msg = (
                "the batches of val_dataloader must fit in memory, as they are the same on every "
                f"layout; got up to {max(sizes):,} examples: {exception}. Give it a smaller "
                "batch_size, or your DataModule a smaller default, or use a larger device."
            )
            raise ValueError(msg) from exception

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
        loader = val_loader(trainer, dataloader_idx)
        # 0: another rank's, evaluated since Lightning's loop must run on every rank
        is_own = loader.sizes[batch_idx] if hasattr(loader, "sizes") else True
        if is_own and isinstance(outputs, Mapping) and "sums" in outputs:
            self._sums.add(outputs["sums"], count_examples(batch))

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Free what was gathered for the evaluation, before weights are put back."""
        if isinstance(trainer.strategy, ShardedStrategy):
            trainer.strategy.reshard()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put the weights back, and average the sums."""
        if self._average:
            self._average.swap(pl_module)
        self.columns = {f"val_{name}": mean for name, mean in self._sums.means().items()}
