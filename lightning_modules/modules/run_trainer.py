"""The Trainer of a run, which shows a project the counts of one rank without accumulation.

A module may make its learning rates from what it reads of the Trainer. So that a batch has one
schedule on every layout, the hooks that prepare a project see the counts that a plain Trainer at
this batch would have. Lightning's loops, and all other hooks, see the counts of the layout.
"""

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytorch_lightning as pl

from lightning_modules.run_class import run_class
from sweeper.upstream.lightnings import load_data_within

_OF_MODULES = ("setup", "configure_model", "configure_optimizers")
_OF_DATA = ("prepare_data", "setup", "train_dataloader", "val_dataloader")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainCounts:
    """What a plain Trainer would count on one rank.

    Attributes:
        parts: micro-batches of a batch, over all ranks.
        steps_per_epoch: batches of the first epoch [steps].
        steps: batches of the training [steps].
    """

    parts: int
    steps_per_epoch: int
    steps: int


class RunTrainer(pl.Trainer):
    """A Trainer with two views of its counts: of the layout, and plain ones.

    Args:
        counts: the plain ones.
        settings: of `pl.Trainer`.

    Attributes:
        is_plain: whether the plain counts are shown.
        around_save: entered while a checkpoint is made.
    """

    is_plain = False
    around_save: Callable[[], AbstractContextManager[None]] = nullcontext

    def __init__(self, counts: PlainCounts, **settings: Any) -> None:
        self._counts = counts
        super().__init__(**settings)
        load_data_within(self, partial(self._show, is_plain=False))  # though a hook may ask

    @contextmanager
    def _show(self, *, is_plain: bool) -> Generator[None]:
        before, self.is_plain = self.is_plain, is_plain
        try:
            yield
        finally:
            self.is_plain = before

    def show_plain_counts_to(self, project: pl.LightningModule | pl.LightningDataModule) -> None:
        """Show the plain counts to the hooks that prepare a user's module or DataModule."""

        def prepare(own: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            accumulation_steps = self.accumulate_grad_batches
            self.accumulate_grad_batches = 1
            try:
                with self._show(is_plain=True):
                    return own(*args, **kwargs)
            finally:
                self.accumulate_grad_batches = accumulation_steps

        is_module = isinstance(project, pl.LightningModule)
        for name in _OF_MODULES if is_module else _OF_DATA:
            run_class(project).wrap(name, prepare)

    def save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        """Save a checkpoint, within `around_save`."""
        with self.around_save():
            super().save_checkpoint(*args, **kwargs)

    @property
    def world_size(self) -> int:
        """Ranks."""
        return 1 if self.is_plain else super().world_size

    @property
    def num_nodes(self) -> int:
        """Nodes."""
        return 1 if self.is_plain else super().num_nodes

    @property
    def num_devices(self) -> int:
        """Ranks of a node."""
        return 1 if self.is_plain else super().num_devices

    @property
    def num_training_batches(self) -> int | float:
        """Micro-batches of an epoch, or whole batches."""
        return self._counts.steps_per_epoch if self.is_plain else super().num_training_batches

    @property
    def estimated_stepping_batches(self) -> int | float:
        """Optimizer steps of the training."""
        steps = super().estimated_stepping_batches  # makes the loader
        return self._counts.steps if self.is_plain else steps

    @property
    def train_dataloader(self) -> Any:
        """The loader in training; None before it was made."""
        loader = super().train_dataloader
        return _PlainLoader(loader, self._counts) if self.is_plain and loader else loader


class _PlainLoader:
    """A loader with the length and the batch size of whole batches."""

    def __init__(self, loader: Any, counts: PlainCounts) -> None:
        self._loader, self._counts = loader, counts

    def __len__(self) -> int:
        return self._counts.steps_per_epoch

    @property
    def batch_size(self) -> int:
        """Examples of a whole batch [examples]."""
        return self._loader.batch_size * self._counts.parts

    def __iter__(self) -> Any:
        return iter(self._loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
