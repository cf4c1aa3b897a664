"""Hooks are called as Lightning calls them: the same ones, in the same order, by the same names."""

import warnings

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.demos.boring_classes import BoringModel, RandomDataset
from pytorch_lightning.profilers import SimpleProfiler
from pytorch_lightning.trainer import call
from torch.utils.data import DataLoader

from lightning_modules.callbacks.steps import NoProfiler
from lightning_modules.process.quick_hooks import call_hooks_quickly

OF_EACH_BATCH = [
    "on_before_batch_transfer",
    "on_train_batch_start",
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
    "on_before_zero_grad",
    "on_train_batch_end",
    "on_validation_batch_start",
    "on_validation_batch_end",
    "on_train_epoch_end",
]


class Noting(Callback):
    """Notes each of its hooks, and the name that the module has of it."""

    def __init__(self, noted):
        for name in set(OF_EACH_BATCH) & set(dir(Callback)):
            setattr(self, name, lambda trainer, module, *_, hook=name: noted(hook, module, self))


class Module(BoringModel):
    """Notes its own hooks, and logs in two of them under their names."""

    def __init__(self, noted):
        super().__init__()
        self.note_inside = lambda: noted("backward", self, self)
        for name in OF_EACH_BATCH:
            own = getattr(self, name)
            setattr(self, name, lambda *args, hook=name, own=own: self.note(noted, hook, own, args))

    def note(self, noted, hook, own, args):
        noted(hook, self, self)
        return own(*args)

    def backward(self, loss):
        self.note_inside()  # between hooks that are called one after the other
        super().backward(loss)

    def training_step(self, batch, batch_idx):
        self.log("loss", torch.tensor(1.0 + batch_idx), on_step=True, on_epoch=True)
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch, batch_idx):
        self.log("loss", torch.tensor(5.0 + batch_idx))
        return super().validation_step(batch, batch_idx)


@pytest.fixture
def quickly(monkeypatch):
    for name in ("_call_callback_hooks", "_call_lightning_module_hook", "_call_strategy_hook"):
        monkeypatch.setattr(call, name, getattr(call, name))
    call_hooks_quickly()


@pytest.fixture
def fit(tmp_path, quickly):
    """The hooks of a fit of two steps of two micro-batches, and what was logged."""
    del quickly

    def run(profiler):
        noted = []

        def note(hook, module, owner):
            noted.append((type(owner).__name__, hook, module._current_fx_name))

        module = Module(note)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer = pl.Trainer(
                accelerator="cpu", profiler=profiler, callbacks=[Noting(note), Callback()],
                max_epochs=1, limit_train_batches=4, limit_val_batches=2, logger=False,
                accumulate_grad_batches=2, num_sanity_val_steps=0, default_root_dir=tmp_path,
                enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
            )  # fmt: skip
            loader = DataLoader(RandomDataset(32, 8))
            trainer.fit(module, loader, loader)
        return noted, {name: value.item() for name, value in trainer.callback_metrics.items()}

    return run


def test_hooks_and_their_names_are_lightnings_own(fit):
    quick, theirs = fit(NoProfiler()), fit(None)

    assert quick == theirs
    assert {hook for _, hook, _ in quick[0]} == {"backward", *OF_EACH_BATCH}
    assert all(name == hook for _, hook, name in quick[0])


def test_a_profiler_of_the_users_sees_every_hook(fit):
    profiler = SimpleProfiler()
    fit(profiler)

    assert {
        "[Callback]Noting.on_train_batch_end",
        "[LightningModule]Module.on_train_batch_end",
        "[Strategy]SingleDeviceStrategy.on_train_batch_start",
    } <= {*profiler.recorded_durations}
