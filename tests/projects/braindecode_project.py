"""braindecode: its ShallowFBCSPNet in the LightningModule of its documentation."""

import lightning as L
import numpy as np
import torch
from braindecode.datasets import create_from_X_y
from braindecode.models import ShallowFBCSPNet
from torch.utils.data import DataLoader
from torchmetrics.functional import accuracy


class Windows(L.LightningDataModule):
    def __init__(self, batch_size=8):
        super().__init__()
        self.batch_size = batch_size

    def setup(self, stage):
        labels, times = np.arange(96) % 4, np.arange(200) / 100
        waves = np.sin(2 * np.pi * np.outer(4 + 4 * labels, times))[:, None]
        noise = np.random.default_rng(0).normal(0, 1, (96, 4, 200))
        windows = create_from_X_y(
            waves + noise, labels, drop_last_window=False, sfreq=100, ch_names=["a", "b", "c", "d"]
        )
        split = windows.split({"train": range(72), "val": range(72, 96)})
        self.train, self.val = split["train"], split["val"]

    def train_dataloader(self):
        return DataLoader(self.train, batch_size=self.batch_size, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.val, batch_size=self.batch_size)


class LitModule(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.module = ShallowFBCSPNet(n_chans=4, n_outputs=4, n_times=200)
        self.loss = torch.nn.CrossEntropyLoss()

    def training_step(self, batch, batch_idx):
        x, y, _ = batch
        loss = self.loss(self.module(x), y)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y, _ = batch
        y_hat = self.module(x)
        acc = accuracy(y_hat, y, "multiclass", num_classes=4)
        self.log_dict({"val_acc": acc, "val_loss": self.loss(y_hat, y)})

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.0625 * 0.01, weight_decay=0)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=2)
        return [optimizer], [scheduler]
