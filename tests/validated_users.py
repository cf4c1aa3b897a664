"""Projects whose metric depends on which examples are validated together; no weight changes."""

from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace

import lightning as L
import torch
import torchmetrics
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler


def sentences(start, stop):
    generator = torch.Generator().manual_seed(start)
    return [torch.randint(1, 9, (1 + n * n % 7,), generator=generator) for n in range(start, stop)]


def pad(examples):
    return {"tokens": pad_sequence(list(examples), batch_first=True)}


class Still(L.LightningModule):
    """Trains at a rate of 0; logs a mean of each batch, and a metric of torchmetrics."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(9, 4), nn.Linear(4, 9)
        self.hits = torchmetrics.SumMetric()

    def losses(self, batch):
        """The loss of each token that is no padding."""
        tokens = batch["tokens"]
        logits = self.head(self.table(tokens)).flatten(0, 1)
        return functional.cross_entropy(logits, tokens.flatten(), reduction="none")[
            tokens.flatten() > 0
        ]

    def training_step(self, batch):
        return self.losses(batch).mean()

    def validation_step(self, batch):
        losses = self.losses(batch)
        self.log("val/loss", losses.mean())
        self.log("val/largest", losses.mean(), reduce_fx="max")
        self.log("val/total", losses.mean(), reduce_fx="sum")
        self.log("val/drawn", torch.rand(()))
        self.hits((losses > 2).sum())
        self.log("val/hits", self.hits)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.0)


class Padded(L.LightningDataModule):
    def __init__(self, batch_size=7):
        super().__init__()
        self.save_hyperparameters()
        self.train, self.val = sentences(0, 48), sentences(48, 78)

    def train_dataloader(self):
        size = self.hparams.batch_size
        return DataLoader(self.train, batch_size=size, shuffle=True, collate_fn=pad)

    def val_dataloader(self):
        return DataLoader(self.val, batch_size=self.hparams.batch_size, collate_fn=pad)


class Doubled(Padded):
    """Validates on twice as many at once, as settings within settings say."""

    def __init__(self, batch_size=4):
        super().__init__()
        self.settings = {"train": batch_size, "val": SimpleNamespace(loader=[2 * batch_size])}

    def val_dataloader(self):
        size = self.settings["val"].loader[0]
        return DataLoader(self.val, batch_size=size, collate_fn=pad)


class Prepared(Padded):
    """Keeps how its loaders are made."""

    def __init__(self, batch_size=5):
        super().__init__()
        self.load = partial(DataLoader, batch_size=batch_size, collate_fn=pad)

    def val_dataloader(self):
        return self.load(self.val)


class Required(Padded):
    """Must be told its batch size, and validates in its own batches."""

    def __init__(self, batch_size):
        super().__init__(batch_size)

    def val_dataloader(self):
        batches = [[0, 1, 2], [3], [*range(4, 15)], [*range(15, 30)]]
        return DataLoader(self.val, batch_sampler=batches, collate_fn=pad)


class Sampled(Padded):
    """Gives a batch sampler of torch's."""

    def val_dataloader(self):
        sampler = BatchSampler(SequentialSampler(self.val), self.hparams.batch_size, False)
        return DataLoader(self.val, batch_sampler=sampler, collate_fn=pad)


class Few(Padded):
    """Has less batches than two ranks."""

    def __init__(self, batch_size=64):
        super().__init__(batch_size)


@dataclass
class Graphs:
    """Nodes of several graphs, one after the other."""

    tokens: torch.Tensor
    batch_size: int
    names: list = field(default_factory=list)

    def __getitem__(self, key):
        return self.tokens[None]

    def to(self, *_, **__):
        return self


def join(examples):
    return Graphs(torch.cat(list(examples)), len(examples))


class Molecules(Padded):
    def train_dataloader(self):
        return DataLoader(self.train, batch_size=4, collate_fn=join)

    def val_dataloader(self):
        return DataLoader(self.val, batch_size=self.hparams.batch_size, collate_fn=join)


class Images(Still):
    """Compares the images of a batch with each other."""

    def losses(self, batch):
        views = functional.normalize(self.head(batch["image"].mean((2, 3))))
        targets = torch.arange(len(views))
        return functional.cross_entropy(views @ views.T, targets, reduction="none")


class Pictures(Padded):
    def load(self, start, stop, size):
        generator = torch.Generator().manual_seed(start)
        images = torch.rand(stop - start, 4, 5, 5, generator=generator).double()
        return DataLoader([{"image": image} for image in images], batch_size=size)

    def train_dataloader(self):
        return self.load(0, 48, self.hparams.batch_size)

    def val_dataloader(self):
        return self.load(48, 78, self.hparams.batch_size)
