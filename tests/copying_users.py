"""Modules that copy or save themselves or their parts, as teachers and model loggers do."""

import copy
import io
import pickle
from pathlib import Path

import cloudpickle
import torch
from torch import nn
from torch.nn import functional
from users import Module

HOOKS = (
    "setup", "configure_model", "on_fit_start", "on_train_start", "on_train_epoch_start",
    "on_train_batch_start", "on_before_optimizer_step", "on_train_batch_end",
    "on_validation_epoch_end", "on_train_epoch_end", "on_train_end",
)  # fmt: skip


class LayeredModule(Module):
    """Dropout and BatchNorm in a body."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 8)
        )


class SnapshotModule(LayeredModule):
    """Learns from a copy of its body, in training mode, that is made as each epoch begins.

    `held` is where the copy is: a part of the module, or in a list, where nobody finds it.
    """

    def __init__(self, held="part"):
        super().__init__()
        self.held, self.teacher, self.hidden = held, None, []

    def on_train_epoch_start(self):
        teacher = copy.deepcopy(self if self.held == "whole" else self.body)
        teacher = (teacher.body if self.held == "whole" else teacher).requires_grad_(False)
        self.hidden = [teacher]
        if self.held == "part":
            self.teacher = teacher

    def training_step(self, batch, batch_idx):
        learned = self.body(batch["x"])
        loss = (self.head(learned) - batch["y"]).square().mean()
        return loss + functional.mse_loss(learned, self.hidden[0](batch["x"]))

    def on_train_epoch_end(self):
        self.log("teacher", self.hidden[0][1].running_var.sum())


class CopyingModule(LayeredModule):
    """Copies, pickles and saves itself and its body in every hook, and looks at what it has."""

    def __init__(self, folder):
        super().__init__()
        self.folder = folder

    def look(self, hook):
        assert isinstance(self, CopyingModule)
        assert isinstance(self.body[1], nn.BatchNorm1d)
        assert isinstance(self.body[3], nn.Dropout)
        for thing, name in ((self, "whole"), (self.body, "part")):
            copied = copy.deepcopy(thing)
            assert copied.training == thing.training
            for kind in (nn.BatchNorm1d, nn.Dropout):
                assert any(isinstance(layer, kind) for layer in copied.modules())
            held = io.BytesIO()
            torch.save(thing, held)
            for dumps in (pickle.dumps, cloudpickle.dumps):
                Path(self.folder, f"{hook}-{name}-{dumps.__module__}").write_bytes(dumps(thing))
            Path(self.folder, f"{hook}-{name}.pt").write_bytes(held.getvalue())

    def training_step(self, batch, batch_idx):
        self.look("training_step")
        return super().training_step(batch, batch_idx)


def _hook(name):
    def hook(self, *args, **kwargs):
        own = getattr(super(CopyingModule, self), name)
        returned = own(*args, **kwargs)
        if name not in ("setup", "configure_model"):  # the optimizer cannot be made before them
            assert self.trainer.lightning_module is self
        self.look(name)
        return returned

    return hook


for _name in HOOKS:
    setattr(CopyingModule, _name, _hook(_name))
