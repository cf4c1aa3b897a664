"""A detector of one stage: each cell says whether it holds a center, and the box around it."""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torchmetrics import Metric
from torchvision.ops import box_convert, box_iou, nms

from .data import CELL


class DetectionF1(Metric):
    """F1 of the boxes found, where a box is found at an IoU of 0.5 or more."""

    def __init__(self):
        super().__init__()
        for name in ("found", "predicted", "present"):
            self.add_state(name, torch.tensor(0), dist_reduce_fx="sum")

    def update(self, boxes, true_boxes):
        self.predicted += len(boxes)
        self.present += len(true_boxes)
        if len(boxes):
            # At 0.5 or more, after suppression at 0.5, a pair is nearly always one to one.
            self.found += (box_iou(true_boxes, boxes).amax(dim=1) >= 0.5).sum()

    def compute(self):
        return 2 * self.found / (self.predicted + self.present).clamp(min=1)


class BoxNet(nn.Module):
    """Per cell: the logit of a center, its offset in the cell, and the box's logarithmic size."""

    def __init__(self, width: int = 24):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, width, 4, stride=4),
            nn.GroupNorm(4, width),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 2, stride=2),
            nn.ReLU(),
            nn.Conv2d(2 * width, 2 * width, 3, padding=1),
            nn.GroupNorm(4, 2 * width),
            nn.ReLU(),
            nn.Conv2d(2 * width, 5, 3, padding=1),
        )

    def forward(self, image):
        return self.layers(image[None])[0].permute(1, 2, 0)


class BoxModule(L.LightningModule):
    def __init__(self, lr: float = 3e-3, width: int = 24, box_weight: float = 2.0):
        super().__init__()
        self.save_hyperparameters()
        self.net = BoxNet(width)
        self.f1 = DetectionF1()

    def forward(self, image):
        """The boxes found in an image, as corners [pixels]."""
        cells = self.net(image)
        scores = cells[..., 0].sigmoid()
        row, column = (scores > 0.5).nonzero(as_tuple=True)
        offset, size = cells[row, column, 1:3], cells[row, column, 3:].exp()
        center = torch.stack([column, row], dim=1) + offset
        boxes = box_convert(CELL * torch.cat([center, size], dim=1), "cxcywh", "xyxy")
        return boxes[nms(boxes, scores[row, column], 0.5)]

    def image_loss(self, image, true_boxes):
        """The loss of an image, summed over its cells and boxes."""
        cells = self.net(image)
        truth = box_convert(true_boxes / CELL, "xyxy", "cxcywh")
        column, row = truth[:, :2].long().unbind(dim=1)
        is_center = torch.zeros_like(cells[..., 0]).index_put_((row, column), cells.new_ones(1))
        found = F.binary_cross_entropy_with_logits(cells[..., 0], is_center, reduction="sum")
        wanted = torch.cat([truth[:, :2].frac(), truth[:, 2:].log()], dim=1)
        return found + self.hparams.box_weight * (cells[row, column, 1:] - wanted).abs().sum()

    def training_step(self, batch, batch_idx):
        images, targets = batch
        boxes = [target["boxes"] for target in targets]
        losses = [self.image_loss(*pair) for pair in zip(images, boxes, strict=True)]
        loss = sum(losses) / sum(map(len, boxes))
        self.log("train/loss", loss, batch_size=len(images))
        return loss

    def validation_step(self, batch, batch_idx):
        images, targets = batch
        for image, target in zip(images, targets, strict=True):
            self.f1.update(self(image), target["boxes"])
        self.log("val/f1", self.f1, batch_size=len(images), prog_bar=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)
