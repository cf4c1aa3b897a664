"""Bright rectangles on noise, in images of different sizes."""

import lightning as L
import torch
from torch.utils.data import DataLoader, Dataset

CELL = 8  # pixels along a side of a cell; a cell holds at most one center


class Rectangles(Dataset):
    """Image `i` is drawn from the seed `first + i`."""

    def __init__(self, first: int, length: int):
        self.first, self.length = first, length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        draw = torch.Generator().manual_seed(self.first + index)
        rows, columns = torch.randint(4, 8, (2,), generator=draw).tolist()
        image = 0.1 * torch.randn(3, rows * CELL, columns * CELL, generator=draw)
        count = int(torch.randint(1, 5, (1,), generator=draw))
        cells = torch.randperm(rows * columns, generator=draw)[:count]
        corner = torch.stack([cells % columns, cells // columns], dim=1) * CELL
        center = corner + CELL * torch.rand(count, 2, generator=draw)
        half = 2 + 6 * torch.rand(count, 2, generator=draw)
        boxes = torch.cat([center - half, center + half], dim=1)
        for box in boxes:
            left, top, right, bottom = box.round().int().clamp(min=0).tolist()
            color = 0.4 + 0.6 * torch.rand(3, 1, 1, generator=draw)
            image[:, top:bottom, left:right] = color
        return image, {"boxes": boxes}


def as_lists(examples):
    images, targets = zip(*examples, strict=True)
    return list(images), list(targets)


class BoxDataModule(L.LightningDataModule):
    def __init__(self, batch_size: int = 16, num_train: int = 1024, num_val: int = 200):
        super().__init__()
        self.save_hyperparameters()

    def setup(self, stage=None):
        self.train_set = Rectangles(0, self.hparams.num_train)
        self.val_set = Rectangles(self.hparams.num_train, self.hparams.num_val)

    def train_dataloader(self):
        return DataLoader(
            self.train_set,
            batch_size=self.hparams.batch_size,
            shuffle=True,
            collate_fn=as_lists,
        )

    def val_dataloader(self):
        return DataLoader(self.val_set, batch_size=self.hparams.batch_size, collate_fn=as_lists)
