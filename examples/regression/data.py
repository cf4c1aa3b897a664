"""Friedman's first function, with noise."""

import lightning.pytorch as pl
import torch
from sklearn.datasets import make_friedman1
from torch.utils.data import DataLoader, TensorDataset


class FriedmanDataModule(pl.LightningDataModule):
    def __init__(self, batch_size: int = 64, num_train: int = 2560, num_val: int = 512):
        super().__init__()
        self.save_hyperparameters()

    def setup(self, stage=None):
        num_train = self.hparams.num_train
        inputs, targets = make_friedman1(num_train + self.hparams.num_val, noise=1, random_state=0)
        inputs = torch.tensor(inputs - 0.5, dtype=torch.float32) * 12**0.5  # variance 1
        targets = torch.tensor(targets, dtype=torch.float32)
        self.train_set = TensorDataset(inputs[:num_train], targets[:num_train])
        self.val_set = TensorDataset(inputs[num_train:], targets[num_train:])

    def train_dataloader(self):
        return DataLoader(self.train_set, batch_size=self.hparams.batch_size, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.val_set, batch_size=self.hparams.batch_size)
