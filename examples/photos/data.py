"""The digits of scikit-learn, enlarged and painted in random colors."""

import lightning as L
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

NUM_TRAIN = 1500  # of the 1,797 digits; the others are for validation
SIDE = 24  # pixels


def painted_digits() -> tuple[torch.Tensor, torch.Tensor]:
    """All digits as bytes `[1797, 3, 24, 24]`, each with its own two colors, and their labels."""
    digits = load_digits()
    ink = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
    ink = F.interpolate(ink, SIDE, mode="bilinear")
    generator = torch.Generator().manual_seed(0)
    paper, pen = torch.rand(2, len(ink), 3, 1, 1, generator=generator)
    images = ink * (0.5 + pen / 2) + (1 - ink) * paper / 2
    return (255 * images).byte(), torch.tensor(digits.target)


class PhotoDataset(Dataset):
    def __init__(self, images, labels, transform):
        self.images, self.labels, self.transform = images, labels, transform

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return {"image": self.transform(self.images[index]), "label": self.labels[index]}


class PhotoDataModule(L.LightningDataModule):
    def __init__(self, batch_size: int = 100, num_workers: int = 0, jitter: float = 0.3):
        super().__init__()
        self.save_hyperparameters(logger=False)
        to_float = v2.ToDtype(torch.float32, scale=True)
        self.train_transform = v2.Compose(
            [v2.RandomCrop(SIDE, padding=2), v2.ColorJitter(jitter, jitter, jitter), to_float]
        )
        self.val_transform = to_float

    def prepare_data(self):
        load_digits()  # others download here

    def setup(self, stage=None):
        images, labels = painted_digits()
        train, val = slice(None, NUM_TRAIN), slice(NUM_TRAIN, None)
        self.train_set = PhotoDataset(images[train], labels[train], self.train_transform)
        self.val_set = PhotoDataset(images[val], labels[val], self.val_transform)

    def train_dataloader(self):
        return DataLoader(
            self.train_set,
            batch_size=self.hparams.batch_size,
            num_workers=self.hparams.num_workers,
            shuffle=True,
            drop_last=True,
        )

    def val_dataloader(self):
        return DataLoader(
            self.val_set,
            batch_size=self.hparams.batch_size,
            num_workers=self.hparams.num_workers,
        )
