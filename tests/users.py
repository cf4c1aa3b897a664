"""A Lightning project that knows nothing of sweeper, as tests name it by `_target_`."""

from pathlib import Path
from typing import ClassVar

import lightning as L
import torch
import torchmetrics
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info


class Noisy(Dataset):
    """A line with noise that each look at an example draws anew."""

    def __init__(self, start, stop):
        self.start, self.stop = start, stop

    def __len__(self):
        return self.stop - self.start

    def __getitem__(self, index):
        x = torch.linspace(-1, 1, 4) * (self.start + index) / 100
        return {"x": x + 0.01 * torch.randn(4), "y": x.sum()[None]}


class DataModule(L.LightningDataModule):
    def __init__(self, batch_size, root="."):
        super().__init__()
        self.batch_size, self.root = batch_size, root
        self.train = self.val = None

    def prepare_data(self):
        assert self.train is None

    def setup(self, stage):
        assert stage == "fit"
        self.train, self.val = Noisy(0, 96), Noisy(96, 126)

    def train_dataloader(self):
        return DataLoader(self.train, batch_size=self.batch_size, shuffle=True)

    def val_dataloader(self):
        return [DataLoader(self.val, batch_size=8), DataLoader(self.train, batch_size=40)]


class PassingDataModule(DataModule):
    """Passes all that it is given on to a data set that knows no other names."""

    def __init__(self, batch_size, **kwargs):
        super().__init__(batch_size)
        self.kwargs = kwargs

    def setup(self, stage):
        assert not self.kwargs.keys() - {"root"}
        super().setup(stage)


class ShapedDataModule(DataModule):
    """Says what our classifier asks for."""

    input_shape, num_classes = (4,), 2


class Module(L.LightningModule):
    """Two groups with rates of their own, under OneCycle by step."""

    def __init__(self, width=8, lr=0.05):
        super().__init__()
        self.save_hyperparameters()
        self.body, self.head = nn.Linear(4, width), nn.Linear(width, 1)
        self.seen = []

    def training_step(self, batch, batch_idx):
        loss = (self.head(self.body(batch["x"]).tanh()) - batch["y"]).square().mean()
        self.log("train/mse", loss, on_epoch=True)
        return loss

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.seen.append([group["lr"] for group in self.optimizers().param_groups])

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        error = self.head(self.body(batch["x"]).tanh()) - batch["y"]
        self.log("val/mse", error.square().mean())
        self.log("val/mae", error.abs().mean(), on_step=True, on_epoch=True)

    def configure_optimizers(self):
        lr = self.hparams.lr
        groups = [
            {"params": self.body.parameters(), "lr": lr / 10},
            {"params": self.head.parameters(), "lr": lr},
        ]
        optimizer = torch.optim.SGD(groups, momentum=0.9)
        steps = self.trainer.estimated_stepping_batches
        one_cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, [lr / 10, lr], steps)
        return [optimizer], [{"scheduler": one_cycle, "interval": "step"}]


class Summed(Module):
    """Its loss is no mean over examples."""

    def training_step(self, batch, batch_idx):
        return (self.head(self.body(batch["x"]).tanh()) - batch["y"]).square().sum() / 10


class Guessing(Module):
    """It draws at the start of epochs and in validation."""

    def on_train_epoch_start(self):
        self.log("train/start", torch.rand(()))

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        super().validation_step(batch, batch_idx, dataloader_idx)
        self.log("val/guess", torch.rand(()))


class Gan(L.LightningModule):
    """Two optimizers, stepped by hand."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.maker, self.judge = nn.Linear(2, 4), nn.Linear(4, 1)

    def training_step(self, batch, batch_idx):
        for optimizer, sign in zip(self.optimizers(), (1, -1), strict=True):
            self.toggle_optimizer(optimizer)
            made = self.maker(torch.randn(len(batch["x"]), 2, dtype=batch["x"].dtype))
            loss = sign * (self.judge(batch["x"]) - self.judge(made)).mean()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
            self.untoggle_optimizer(optimizer)
        self.log("train/gap", loss)

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        self.log("val/score", self.judge(batch["x"]).mean())

    def configure_optimizers(self):
        makers = torch.optim.SGD(self.maker.parameters(), lr=0.01)
        return makers, torch.optim.SGD(self.judge.parameters(), lr=0.02)


class Masked(Dataset):
    """Sequences of 4, of which `loss_mask` says which entries count: none in each fourth."""

    def __init__(self, start, stop, present=1):
        self.start, self.stop, self.present = start, stop, present

    def __len__(self):
        return self.stop - self.start

    def __getitem__(self, index):
        if index >= len(self):
            raise IndexError(index)
        number = self.start + index
        x = torch.arange(4) + number / 10
        return {"x": x, "y": x.cos(), "loss_mask": torch.arange(4) < number % 4 * self.present}


class MaskedDataModule(L.LightningDataModule):
    def __init__(self, batch_size, present=1):
        super().__init__()
        self.batch_size, self.present = batch_size, present

    def train_dataloader(self):
        return DataLoader(Masked(0, 48, self.present), batch_size=self.batch_size)

    def val_dataloader(self):
        return DataLoader(Masked(48, 60), batch_size=8)


class MaskedModule(L.LightningModule):
    """One weight; its loss is a mean over the entries that count."""

    def __init__(self, lr=0.01):
        super().__init__()
        self.lr, self.weight = lr, nn.Parameter(torch.ones(()))

    def training_step(self, batch):
        mask = batch["loss_mask"]
        return ((self.weight * batch["x"] - batch["y"]).square() * mask).sum() / mask.sum()

    def validation_step(self, batch):
        self.log("val/mse", (self.weight * batch["x"] - batch["y"]).square().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.lr)


class WeighedModule(MaskedModule):
    """Four weights, one for each entry."""

    def __init__(self, lr=0.01):
        super().__init__(lr)
        self.weight = nn.Parameter(torch.linspace(0.5, 1, 4))


class DrawingModule(L.LightningModule):
    """Draws in each step, normalises by BatchNorm and counts its examples in a metric."""

    def __init__(self):
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(4), nn.Linear(4, 1)
        self.examples = torchmetrics.SumMetric()

    def training_step(self, batch):
        x = batch.pop("x")  # gone for whoever comes second
        self.examples(len(x))
        self.log("train/examples", self.examples, on_step=False, on_epoch=True)
        return (self.head(self.norm(x)) * torch.rand(len(x), 1, dtype=x.dtype)).square().mean()

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        if dataloader_idx == 0:
            self.log("val/mean", self.norm.running_mean.sum(), add_dataloader_idx=False)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Stream(IterableDataset):
    """The examples of `Noisy` in an order of its own, dealt to its processes."""

    def __init__(self, start, stop):
        self.examples = Noisy(start, stop)

    def __iter__(self):
        worker = get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        order = torch.randperm(len(self.examples)).tolist() if worker is None else range(96)
        return (self.examples[index] for index in order[first::step])


class Divided(Stream):
    """A stream that is shuffled as a whole, of which each rank then takes its part."""

    def __init__(self, start, stop, part=0, parts=1):
        super().__init__(start, stop)
        self.ends, self.part = (start, stop), slice(part, None, parts)

    def shard(self, num_shards, index):
        return Divided(*self.ends, index, num_shards)

    def __iter__(self):
        order = torch.randperm(len(self.examples)).tolist()
        return (self.examples[index] for index in order[self.part])


class StreamModule(Module):
    """Notes what it trains on."""

    trained: ClassVar[list] = []

    def training_step(self, batch, batch_idx):
        self.trained += batch["x"][:, 0].tolist()
        return super().training_step(batch, batch_idx)


class StreamDataModule(L.LightningDataModule):
    def __init__(self, batch_size, num_workers=0):
        super().__init__()
        self.settings = {"batch_size": batch_size, "num_workers": num_workers}

    def train_dataloader(self):
        return DataLoader(Stream(0, 96), **self.settings)

    def val_dataloader(self):
        return DataLoader(Stream(96, 126), batch_size=8)


class DividedDataModule(StreamDataModule):
    def train_dataloader(self):
        return DataLoader(Divided(0, 96), **self.settings)

    def val_dataloader(self):
        return DataLoader(Divided(96, 129), batch_size=8)  # 3 and 2 batches on 2 ranks


class PreparedDataModule(DataModule):
    """Downloads into its folder, once, and validates by name."""

    def prepare_data(self):
        with (Path(self.root) / "downloads").open("a") as file:
            file.write("x")

    def setup(self, stage):
        assert (Path(self.root) / "downloads").exists()
        super().setup(stage)

    def val_dataloader(self):
        return dict(zip(("new", "old"), super().val_dataloader(), strict=True))


class Endless(Stream):
    def __init__(self):
        super().__init__(0, 96)

    def __iter__(self):
        while True:
            yield from super().__iter__()


class EndlessDataModule(StreamDataModule):
    def train_dataloader(self):
        return DataLoader(Endless(), **self.settings)


class DigitsModule(L.LightningModule):
    """Trains on one of our data sets, if `width` is that of its flat images."""

    def __init__(self, width=64, *, is_contrastive=False, evaluates=True):
        super().__init__()
        self.head = nn.Linear(width, 10)
        self.is_contrastive, self.evaluates = is_contrastive, evaluates

    def training_step(self, batch):
        logits = self.head(batch[0].flatten(1))
        labels = torch.arange(len(logits)) if self.is_contrastive else batch[1]
        return nn.functional.cross_entropy(
            logits @ logits.T if self.is_contrastive else logits, labels
        )

    def validation_step(self, batch):
        assert self.evaluates
        self.log("val/ce", nn.functional.cross_entropy(self.head(batch[0].flatten(1)), batch[1]))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
