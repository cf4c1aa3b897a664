"""Callbacks that a test adds to a run: one keeps what was trained, the other kills it."""

import copy
import os
import signal
from pathlib import Path

import torch
from pytorch_lightning import Callback


class Record(Callback):
    """Keeps the weights before and after training, and the batches of each epoch in their order."""

    def __init__(self, file):
        self.file, self.epochs = Path(file), []

    def on_train_start(self, trainer, pl_module):
        self.before = copy.deepcopy(pl_module.state_dict())

    def on_train_epoch_start(self, trainer, pl_module):
        self.epochs.append([])

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.epochs[-1].append(copy.deepcopy(batch))

    def on_train_end(self, trainer, pl_module):
        kept = {"before": self.before, "epochs": self.epochs, "after": pl_module.state_dict()}
        torch.save(kept, self.file)


class Kill(Callback):
    """Ends the process of the run by SIGKILL within an epoch, unless the file says that it did."""

    def __init__(self, file, epoch):
        self.file, self.epoch = Path(file), epoch

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.current_epoch == self.epoch and batch_idx == 1 and not self.file.exists():
            self.file.touch()
            os.kill(os.getpid(), signal.SIGKILL)
