"""lightly: SimCLR with two views of each image."""

import pytorch_lightning as pl
import torch
from lightly.loss import NTXentLoss
from lightly.models.modules import SimCLRProjectionHead
from lightly.transforms import SimCLRTransform
from torch.utils.data import DataLoader
from torchvision.datasets import FakeData


class Views(pl.LightningDataModule):
    def __init__(self, batch_size=8):
        super().__init__()
        self.batch_size = batch_size

    def setup(self, stage):
        self.images = FakeData(48, (3, 16, 16), transform=SimCLRTransform(input_size=16))

    def train_dataloader(self):
        return DataLoader(self.images, batch_size=self.batch_size, shuffle=True, drop_last=True)

    def val_dataloader(self):
        return DataLoader(self.images, batch_size=self.batch_size)


class SimCLR(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(768, 16))
        self.head, self.criterion = SimCLRProjectionHead(16, 16, 8), NTXentLoss()

    def loss(self, batch):
        (first, second), _ = batch
        return self.criterion(self.head(self.body(first)), self.head(self.body(second)))

    def training_step(self, batch, batch_idx):
        return self.loss(batch)

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.loss(batch))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.06)
