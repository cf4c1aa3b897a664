"""A perceptron with two hidden layers, trained by Adam on the squared error."""

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from torch import nn
from torchmetrics import MeanSquaredError, R2Score


class FriedmanModule(pl.LightningModule):
    def __init__(self, lr: float = 1e-2, width: int = 64):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(
            nn.Linear(10, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1)
        )
        self.r2 = R2Score()
        self.rmse = MeanSquaredError(squared=False)

    def forward(self, inputs):
        return self.net(inputs).squeeze(-1)

    def training_step(self, batch, batch_idx):
        inputs, targets = batch
        loss = F.mse_loss(self(inputs), targets)
        self.log("train/loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        inputs, targets = batch
        predictions = self(inputs)
        self.r2(predictions, targets)
        self.rmse(predictions, targets)
        self.log("val/r2", self.r2, prog_bar=True)
        self.log("val/rmse", self.rmse)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)
