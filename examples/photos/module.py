"""A small convolutional classifier that also redraws its input."""

from collections.abc import Callable
from functools import partial

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torchmetrics import MeanMetric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score

from .data import SIDE

THUMBNAIL = 8  # pixels along a side of what is redrawn
ADAMW = partial(torch.optim.AdamW, lr=0.01, weight_decay=0.01)


def convolution(channels_in: int, channels_out: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(channels_out),
        nn.ReLU(),
    )


class PhotoNet(nn.Module):
    def __init__(self, width: int = 16, dropout: float = 0.1, num_classes: int = 10):
        super().__init__()
        self.backbone = nn.Sequential(
            convolution(3, width),
            convolution(width, 2 * width),
            convolution(2 * width, 4 * width),
            nn.Flatten(),
            nn.Dropout(dropout),
        )
        features = 4 * width * (SIDE // 8) ** 2
        self.head = nn.Linear(features, num_classes)
        self.decoder = nn.Linear(features, 3 * THUMBNAIL**2)

    def forward(self, images):
        features = self.backbone(images)
        return self.head(features), self.decoder(features).view(-1, 3, THUMBNAIL, THUMBNAIL)


class PhotoModule(L.LightningModule):
    def __init__(
        self,
        net: nn.Module | None = None,
        optimizer: Callable = ADAMW,
        redraw_weight: float = 0.5,
        num_classes: int = 10,
    ):
        super().__init__()
        self.save_hyperparameters(logger=False, ignore=["net"])
        self.net = net or PhotoNet(num_classes=num_classes)
        metrics = MetricCollection(
            {
                "acc": MulticlassAccuracy(num_classes, average="micro"),
                "f1": MulticlassF1Score(num_classes),
            }
        )
        self.train_metrics = metrics.clone(prefix="train/")
        self.val_metrics = metrics.clone(prefix="val/")
        self.val_loss = MeanMetric()

    def forward(self, images):
        return self.net(images)[0]

    def losses(self, batch):
        logits, redrawn = self.net(batch["image"])
        thumbnails = F.adaptive_avg_pool2d(batch["image"], THUMBNAIL)
        return logits, F.cross_entropy(logits, batch["label"]), F.mse_loss(redrawn, thumbnails)

    def training_step(self, batch, batch_idx):
        logits, classification, redraw = self.losses(batch)
        self.train_metrics(logits, batch["label"])
        self.log("train/classification", classification)
        self.log("train/redraw", redraw)
        self.log_dict(self.train_metrics, on_step=False, on_epoch=True)
        return classification + self.hparams.redraw_weight * redraw

    def validation_step(self, batch, batch_idx):
        logits, classification, redraw = self.losses(batch)
        self.val_metrics(logits, batch["label"])
        loss = classification + self.hparams.redraw_weight * redraw
        self.val_loss.update(loss, weight=len(logits))
        self.log("val/loss", self.val_loss)
        self.log_dict(self.val_metrics, prog_bar=True)

    def configure_optimizers(self):
        backbone = list(self.net.backbone.parameters())
        head = [*self.net.head.parameters(), *self.net.decoder.parameters()]
        optimizer = self.hparams.optimizer([{"params": backbone}, {"params": head}])
        rate = optimizer.defaults["lr"]
        scheduler = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, [0.1 * rate, rate], total_steps=self.trainer.estimated_stepping_batches
        )
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }
