"""A Lightning project whose examples have different lengths, and are padded to the longest."""

import lightning as L
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Sampler


def documents(num, seed):
    """Documents of 2 to 20 tokens."""
    draws = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, 21, (num,), generator=draws).tolist()
    return [torch.randint(8, (length,), generator=draws) for length in lengths]


def pad(texts):
    tokens = pad_sequence(texts, batch_first=True)
    return {"tokens": tokens, "labels": pad_sequence(texts, batch_first=True, padding_value=-100)}


def count(batch):
    """The tokens that are predicted: all but the first of each document."""
    return (batch["labels"][:, 1:] != -100).sum()


def count_padded(batch):
    """A mistake: padding counts too."""
    return batch["labels"][:, 1:].numel()


class Backwards(Sampler):
    """The documents from the last to the first; with `twice`, the last of them twice."""

    def __init__(self, num, twice):
        self.keys = [*range(num)][::-1] + [num - 1] * twice

    def __len__(self):
        return len(self.keys)

    def __iter__(self):
        return iter(self.keys)


class DataModule(L.LightningDataModule):
    def __init__(self, batch_size, num=60, order="", num_workers=0):
        super().__init__()
        self.batch_size, self.num, self.order, self.workers = batch_size, num, order, num_workers

    def train_dataloader(self):
        own = {"sampler": Backwards(self.num, self.order == "twice")} if self.order else {}
        return DataLoader(
            documents(self.num, 0),
            batch_size=self.batch_size,
            collate_fn=pad,
            num_workers=self.workers,
            **own or {"shuffle": True},
        )

    def val_dataloader(self):
        return DataLoader(documents(9, 1), batch_size=4, collate_fn=pad)


class Module(L.LightningModule):
    """Predicts each token from those before it."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(8, 4), nn.Linear(4, 8)

    def loss(self, batch):
        logits = self.head(self.embed(batch["tokens"]).cumsum(1))
        return functional.cross_entropy(
            logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten()
        )

    def training_step(self, batch):
        return self.loss(batch)

    def validation_step(self, batch):
        self.log("val/loss", self.loss(batch))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.3, momentum=0.9)
