"""MONAI: a U-Net in the LightningModule of its tutorial, on random crops of made-up balls."""

import lightning as L
import numpy as np
import torch
from monai.data import CacheDataset, DataLoader, decollate_batch, list_data_collate
from monai.inferers import sliding_window_inference
from monai.losses import DiceLoss
from monai.metrics import DiceMetric
from monai.networks.layers import Norm
from monai.networks.nets import UNet
from monai.transforms import AsDiscrete, Compose, EnsureChannelFirstd, RandCropByPosNegLabeld


def ball(i):
    rng, places = np.random.default_rng(i), np.indices((16, 16, 16))
    distance = ((places - rng.uniform(5, 11, (3, 1, 1, 1))) ** 2).sum(0) ** 0.5
    label = (distance < 4).astype("float32")
    return {"image": label + rng.normal(0, 0.3, label.shape).astype("float32"), "label": label}


def collate(volumes):
    """Its batches hold two crops of each volume, so an entry shows how many volumes these are."""
    return {**list_data_collate(volumes), "volumes": list(range(len(volumes)))}


class Volumes(CacheDataset):
    """Its random transforms have a generator of their own, which here follows NumPy's."""

    def __getitem__(self, index):
        self.transform.set_random_state(np.random.randint(2**31))  # noqa: NPY002
        return super().__getitem__(index)


class Balls(L.LightningDataModule):
    def __init__(self, batch_size=4):
        super().__init__()
        self.batch_size = batch_size

    def setup(self, stage):
        channel = EnsureChannelFirstd(["image", "label"], channel_dim="no_channel")
        crop = RandCropByPosNegLabeld(["image", "label"], "label", (8, 8, 8), num_samples=2)
        self.train = Volumes([ball(i) for i in range(32)], Compose([channel, crop]))
        self.val = CacheDataset([ball(i) for i in range(32, 40)], channel)

    def train_dataloader(self):
        return DataLoader(self.train, batch_size=self.batch_size, shuffle=True, collate_fn=collate)

    def val_dataloader(self):
        return DataLoader(self.val, batch_size=1)


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self._model = UNet(3, 1, 2, channels=(4, 8), strides=(2,), norm=Norm.BATCH)
        self.loss_function = DiceLoss(to_onehot_y=True, softmax=True)
        self.post_pred = AsDiscrete(argmax=True, to_onehot=2)
        self.post_label = AsDiscrete(to_onehot=2)
        self.dice_metric = DiceMetric(include_background=False, reduction="mean")

    def forward(self, x):
        return self._model(x)

    def configure_optimizers(self):
        return torch.optim.Adam(self._model.parameters(), 1e-3)

    def training_step(self, batch, batch_idx):
        return self.loss_function(self(batch["image"]), batch["label"])

    def validation_step(self, batch, batch_idx):
        outputs = sliding_window_inference(batch["image"], (16, 16, 16), 4, self.forward)
        self.log("val_loss", self.loss_function(outputs, batch["label"]))
        outputs = [self.post_pred(i) for i in decollate_batch(outputs)]
        labels = [self.post_label(i) for i in decollate_batch(batch["label"])]
        self.dice_metric(y_pred=outputs, y=labels)

    def on_validation_epoch_end(self):
        self.log("val_dice", self.dice_metric.aggregate().item())
        self.dice_metric.reset()
