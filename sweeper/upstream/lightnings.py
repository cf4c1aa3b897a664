"""Lightning: its progress, what it keeps of logged values, and what it does between steps."""

# pyright: reportPrivateUsage=false

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.core.optimizer import _init_optimizers_and_lr_schedulers
from torch import Tensor


def stop_broadcasting_sigterm(trainer: pl.Trainer) -> None:
    """Spare ranks an exchange before every micro-batch: the launcher handles SIGTERM instead.

    `_TrainingEpochLoop._broadcast_sigterm_tensor`, new in Lightning 2.6 (Lightning#20825).
    """
    epoch_loop: Any = trainer.fit_loop.epoch_loop
    if hasattr(epoch_loop, "_broadcast_sigterm_tensor"):
        epoch_loop._broadcast_sigterm_tensor = lambda: None


def call_before_steps(precision_plugin: Any, then: Callable[[], None]) -> None:
    """Have a function called as the last thing before a step, after hooks that may set rates.

    `Precision._after_closure`: no public hook comes after the module's own.
    """
    own = precision_plugin._after_closure

    def after_closure(model: Any, optimizer: Any) -> None:
        own(model, optimizer)
        then()

    precision_plugin._after_closure = after_closure


def never_validate(trainer: pl.Trainer) -> None:
    """Validate after no micro-batch, until `validate_after` has said after which."""
    trainer.val_check_batch = float("inf")


def validate_after(trainer: pl.Trainer, batch_idx: int, *, is_due: bool) -> None:
    """Say, before a 0-based micro-batch of an epoch, whether Lightning validates after it.

    `Trainer.val_check_batch`: it validates after micro-batches that are multiples of this number,
    and after the last of an epoch if it is infinite: so, if not, the number is one too large.
    """
    trainer.val_check_batch = batch_idx + (1 if is_due else 2)


def is_validated(trainer: pl.Trainer) -> bool:
    """Whether the last micro-batch was one to validate after."""
    return trainer.val_check_batch == trainer.fit_loop.batch_idx + 1


def call_after_micro_batch(trainer: pl.Trainer, then: Callable[[], None]) -> None:
    """Have a function called after each micro-batch, its hooks and any validation after it.

    `_TrainingEpochLoop.on_advance_end`: no public hook comes after a validation has given back the
    training mode.
    """
    loop = trainer.fit_loop.epoch_loop
    own = loop.on_advance_end

    def on_advance_end(data_fetcher: Any) -> None:
        own(data_fetcher)
        then()

    loop.on_advance_end = on_advance_end


def set_epoch_progress(checkpoint: Mapping[str, Any], taken: int) -> None:
    """Have a resumed fit begin after these micro-batches of its epoch.

    Lightning counts the last when it resumes, so one micro-batch fewer is completed.
    """
    loop = checkpoint["loops"]["fit_loop"]
    progress, total = (loop["epoch_loop.batch_progress"][key] for key in ("current", "total"))
    progress.update(ready=taken, started=taken, processed=taken, completed=taken - 1)
    total["completed"] = total["processed"] - 1
    loop["epoch_loop.state_dict"]["_batches_that_stepped"] -= 1


def move_second_epoch(trainer: pl.Trainer, *, to: int) -> None:
    """Have the epoch after the first be a later 0-based one.

    `global_step` goes on as it was: what acts where it changes would take a jump for a step.
    `trainer.fit_loop.on_advance_start` begins an epoch, and `epoch_progress` numbers it.
    """
    loop = trainer.fit_loop
    own = loop.on_advance_start

    def on_advance_start() -> None:
        if trainer.current_epoch == 1:
            now: Any = loop.epoch_progress.current
            now.ready = now.started = now.processed = now.completed = to
        own()

    loop.on_advance_start = on_advance_start


@contextmanager
def with_attributes(data: pl.LightningDataModule, values: Mapping[str, Any]) -> Generator[None]:
    """Give a DataModule's attributes other values within a block.

    They are the user's: no hook tells a DataModule that it is asked for validation batches.
    """
    before = {name: vars(data)[name] for name in values if name in vars(data)}
    vars(data).update({name: values[name] for name in before})
    try:
        yield
    finally:
        for name, value in before.items():
            if vars(data)[name] is values[name]:
                vars(data)[name] = value


def load_data_within(
    trainer: pl.Trainer, block: Callable[[], AbstractContextManager[None]]
) -> None:
    """Have Lightning make its training loader within a block: `trainer.fit_loop.setup_data`."""
    own = trainer.fit_loop.setup_data

    def setup_data() -> None:
        with block():
            own()

    trainer.fit_loop.setup_data = setup_data


def configure_optimizers(module: pl.LightningModule) -> tuple[list[Any], list[Any]]:
    """A module's optimizers and configured schedulers: `_init_optimizers_and_lr_schedulers`."""
    return _init_optimizers_and_lr_schedulers(module)


def epoch_results(trainer: pl.Trainer) -> Iterator[tuple[str, Any]]:
    """The tensors that were logged for the current loop's epoch on this rank, by Lightning's keys.

    `Trainer._results`, a `_ResultCollection` of `_ResultMetric`: no public name tells what a rank
    has logged so far.
    """
    for key, result in (trainer._results or {}).items():
        meta = result.meta
        is_of_epoch = meta.on_epoch and not result.has_reset and not meta.sync.rank_zero_only
        if result.is_tensor and is_of_epoch:
            yield key, result


def result_names(trainer: pl.Trainer, result: Any) -> list[str]:
    """The names under which callbacks find a logged value: `_ResultCollection._forked_name`."""
    results: Any = trainer._results
    return list(results._forked_name(result, on_step=False))


def has_epoch_values(trainer: pl.Trainer) -> dict[str, bool]:
    """By name logged in the current loop, whether it has a value of the epoch, or of a batch."""
    found = dict[str, bool]()
    for result in (trainer._results or {}).values():
        for name in result_names(trainer, result):
            found[name] = found.get(name, False) or result.meta.on_epoch
    return found


def reduced_value(result: Any) -> tuple[str, float, float]:
    """How a logged value is reduced, its total so far, and the examples behind it."""
    reduce_fx = result.meta.reduce_fx.__name__
    weight = float(result.cumulated_batch_size) if reduce_fx == "mean" else 1.0
    return reduce_fx, float(result.value), weight


def add_to_value(result: Any, total: float, examples: int) -> None:
    """Set a logged value's total, and add to the examples behind it, 0 unless it is a mean."""
    result.value = torch.full_like(result.value, total)
    if examples:
        result.cumulated_batch_size += examples


def set_computed(result: Any, value: Tensor) -> None:
    """Set what Lightning takes as the value of the epoch: `torchmetrics.Metric._computed`."""
    result._computed = value


def computed(result: Any) -> Tensor | None:
    """What was set as the value of the epoch."""
    return result._computed


def metrics_that_reset(trainer: pl.Trainer, *, in_epoch: bool) -> set[int]:
    """Ids of the torchmetrics that Lightning resets before their next update.

    `_results` of the training and the validation loop; within an epoch only the latter's.
    """
    loop = trainer.fit_loop.epoch_loop
    loops: list[Any] = [loop.val_loop, *[loop] * (not in_epoch)]
    return {id(result.value) for loop in loops for result in loop._results.values()}
