"""The loaders of a run: for our own data, or rebuilt from a user's DataModule."""

import fcntl
import os
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytorch_lightning as pl

from lightning_modules.data.batch_counts import item_count
from lightning_modules.data.batches import (
    VAL_BATCH,
    MicroBatches,
    ValBatches,
    Windows,
    val_bounds,
)
from lightning_modules.data.counted_loaders import (
    CountedBatches,
    CountedValidation,
    is_iterable,
)
from lightning_modules.data.randomness import seed_everything
from lightning_modules.data.token_fill import Filled, TokenFill
from lightning_modules.data.user_loaders import OwnExamples, ValLoader
from lightning_modules.rank_plan import RankPlan
from lightning_modules.run_class import run_class
from sweeper.spec.worker_args import WRONG_COUNT
from sweeper.upstream.lightnings import with_attributes


def run_loaders(
    data: Any,
    plan: RankPlan,
    *,
    in_whole_micro_batches: bool,
    windows: Windows | None = None,
    plain: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The data arguments of `Trainer.fit`, by name.

    Args:
        data: what to train on and evaluate: a user's DataModule, or a data set of ours.
        plan: the run's batch plan.
        plain: attributes of the DataModule as they are with its own batch size.
        in_whole_micro_batches: as in `val_bounds`.
        windows: as in `MicroBatches`, for a user's data.

    Raises:
        ValueError: if the data has another number of examples than the plan.
    """
    if isinstance(data, pl.LightningDataModule):
        return {"datamodule": use_run_loaders(data, plan, windows=windows, plain=plain)}
    _check_num_examples(data.num_train_examples, plan)
    num, split = data.num_val_examples, plan.split(0)
    if plan.has_own_code:  # the metric may depend on what is evaluated together
        starts = range(plan.rank * VAL_BATCH, num, split.world_size * VAL_BATCH)
        bounds = [(start, min(start + VAL_BATCH, num)) for start in starts]
    else:
        whole = in_whole_micro_batches
        bounds = val_bounds(num, split=split, rank=plan.rank, in_whole_micro_batches=whole)
    # No DataModule: Lightning would look for its hooks at each micro-batch.
    return {
        "train_dataloaders": MicroBatches(data, plan, seed=plan.seed),
        "val_dataloaders": ValBatches(data, bounds),
    }


def use_run_loaders(
    data: pl.LightningDataModule,
    plan: RankPlan,
    *,
    windows: Windows | None = None,
    plain: Mapping[str, Any] | None = None,
) -> pl.LightningDataModule:
    """Have a user's DataModule make the run's loaders; its other hooks stay.

    Its validation loaders are made with the batch size of its own, so that what it validates in
    batches does not depend on the run's.
    """
    added = run_class(data)

    def prepare_data(own: Callable[[], None]) -> None:
        with _lock_runs(data, fcntl.LOCK_EX):
            own()

    def setup(own: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        seed_everything(plan.seed)  # so that a random split is the same on every rank and attempt
        with _lock_runs(data, fcntl.LOCK_SH):
            own(*args, **kwargs)

    def train_dataloader(own: Callable[[], Any]) -> Any:
        loader = own()
        if getattr(data.trainer, "is_plain", False):  # in a hook of the module
            return loader
        if is_iterable(loader):
            return CountedBatches(loader, plan, windows)
        examples: Any = OwnExamples(loader, seed=plan.seed)
        needed = plan.examples_in(0, plan.steps(0))
        is_short_pass = examples.has_own_order and needed <= examples.num_train_examples
        if not is_short_pass:  # a batch sampler may leave out what fills no batch
            _check_num_examples(examples.num_train_examples, plan)
        if plan.epoch_tokens:
            plan.filled = _fill_steps(examples, plan)
        return MicroBatches(examples, plan, seed=plan.seed, windows=windows)

    def val_dataloader(own: Callable[[], Any]) -> Any:
        with with_attributes(data, plain or {}):
            loaders = own()
        if isinstance(loaders, dict):
            return {name: _build_val_loader(loader, plan) for name, loader in loaders.items()}
        if isinstance(loaders, list | tuple):
            return [_build_val_loader(loader, plan) for loader in loaders]
        return _build_val_loader(loaders, plan)

    added.wrap("prepare_data", prepare_data)
    added.wrap("setup", setup)
    added.wrap("train_dataloader", train_dataloader)
    added.wrap("val_dataloader", val_dataloader)
    return data


def _fill_steps(examples: OwnExamples, plan: RankPlan) -> Callable[[int], Filled]:
    """The steps of each epoch of a batch in tokens; ValueError if the data have changed."""
    assert plan.loss_items, "checked by the spec"
    counts = examples.count_tokens(item_count(plan.loss_items))
    if (num := int(counts.sum())) != plan.epoch_tokens:
        msg = (
            f"the data must have the tokens that were planned; got {plan.epoch_tokens}, they "
            f"have {num}. Count them without draws; if the data have changed, repeat the command."
        )
        raise ValueError(msg)
    split = plan.split(0)
    fill = TokenFill(
        lambda epoch: counts[examples.indices(epoch)],
        budget=split.global_batch,
        parts=split.accumulation_steps * split.world_size,
        steps=num // split.global_batch,
    )
    return fill.epoch


@contextmanager
def _lock_runs(data: pl.LightningDataModule, kind: int) -> Generator[None]:
    """Lock the folder of runs, so that no run of a sweep writes data while another reads them.

    Args:
        data: its Trainer works in the folder of an attempt; without a Trainer nothing is locked.
        kind: of lock, as in `fcntl.flock`.
    """
    if data.trainer is None:  # in the trace of a run's memory, where no other run reads them
        yield
        return
    folder = Path(data.trainer.default_root_dir)
    of_runs = folder.parent.parent  # not so named if a run is trained on its own
    descriptor = os.open(of_runs if of_runs.name == "attempts" else folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network file systems have no locks
            fcntl.flock(descriptor, kind)
        yield
    finally:
        os.close(descriptor)


def _build_val_loader(own: Any, plan: RankPlan) -> Any:
    if is_iterable(own):
        return CountedValidation(own, plan)
    return ValLoader(own, seed=plan.seed, rank=plan.rank, world_size=plan.split(0).world_size)


def _check_num_examples(num: int, plan: RankPlan) -> None:
    if num != plan.num_train_examples:
        msg = (
            f"{WRONG_COUNT}; got {plan.num_train_examples}, it has {num}. If each rank has a part, "
            "let each have all: the run divides it. If the data have changed, repeat the command, "
            "which counts again; a number that you gave must be corrected."
        )
        raise ValueError(msg)
