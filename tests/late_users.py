"""Parts of a Lightning project that knows nothing of sweeper, with hooks of its own."""

import copy
import random
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
import torchmetrics
from pytorch_lightning.callbacks import Callback
from schedulefree import AdamWScheduleFree
from torch import nn
from torch.utils.data import DataLoader, Sampler
from users import DataModule, MaskedModule, Module, Noisy, Stream, StreamDataModule


class LateModule(Module):
    """Makes its layers when Lightning asks for them, some of which draw or normalise."""

    def __init__(self, width=8, lr=0.05):
        super().__init__(width, lr)
        self.body = self.head = None

    def configure_model(self):
        if self.body is None:
            self.body = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.BatchNorm1d(8))

    def setup(self, stage):
        if self.head is None:
            self.head = nn.Sequential(nn.Dropout(0.2), nn.BatchNorm1d(8), nn.Linear(8, 1))


class RedrawnDataModule(DataModule):
    """Adds noise to whole batches, once they are where they are trained on."""

    noise: ClassVar[list] = []

    def on_after_batch_transfer(self, batch, dataloader_idx):
        if self.trainer.training:
            noise = torch.randn(len(batch["x"]), 4)
            self.noise.append(noise.sum().item())
            batch["x"] = batch["x"] + 0.1 * noise
        return batch


class MovedDataModule(DataModule):
    """Moves batches itself."""

    def transfer_batch_to_device(self, batch, device, dataloader_idx):
        return {name: part.to(device) for name, part in batch.items()}


class PlateauModule(Module):
    """Halves its rate when its metric does not fall by 100."""

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(
            optimizer, factor=0.5, patience=0, threshold=100, threshold_mode="abs"
        )
        monitor = "val/mse/dataloader_idx_0"
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": monitor}}


class SummingUpModule(Module):
    """Logs when its epoch ends."""

    def on_train_epoch_end(self):
        self.log("train/weight", self.head.weight.sum())


class SteppedModule(Module):
    """Overrides what Lightning does around a step, and does the same."""

    called: ClassVar[set] = set()

    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx)[None]

    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure=None):
        self.called.add("optimizer_step")
        optimizer.step(closure=optimizer_closure)

    def lr_scheduler_step(self, scheduler, metric):
        self.called.add("lr_scheduler_step")
        scheduler.step()

    def configure_gradient_clipping(
        self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None
    ):
        self.called.add("configure_gradient_clipping")
        self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)

    def backward(self, loss):
        self.called.add("backward")
        loss.backward()


class SkippingModule(Module):
    """Steps at every second batch only."""

    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure=None):
        if batch_idx % 2:
            optimizer.step(closure=optimizer_closure)
        else:
            optimizer_closure()


class BareModule(Module):
    """Steps the optimizer behind Lightning's back, at rates that it is not to have."""

    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure=None):
        optimizer.optimizer.step(closure=optimizer_closure)


class OddDataModule(DataModule):
    """31 examples of validation: no number of several ranks has as many each."""

    def val_dataloader(self):
        return DataLoader(Noisy(96, 127), batch_size=8)


class TellingModule(Module):
    """Logs in every way, and some names on one rank only."""

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.log("train/largest", loss, on_step=False, on_epoch=True, reduce_fx="max")
        if self.trainer.is_global_zero:
            self.log("train/first", self.current_epoch + 1.0, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        error = (self.head(self.body(batch["x"]).tanh()) - batch["y"]).square()
        self.log("val/mse", error.mean())
        self.log("val/sum", error.sum(), reduce_fx="sum", sync_dist=True)
        if not self.trainer.is_global_zero:
            self.log("val/last", 5.0)

    def on_validation_epoch_end(self):
        self.log("val/rank", float(self.global_rank))
        if self.trainer.is_global_zero:
            self.log("val/seen", 7.0)


class SecondOrderModule(Module):
    """Its optimizer passes over a batch as often as it likes."""

    def configure_optimizers(self):
        return torch.optim.LBFGS(self.parameters(), lr=0.1)


class NumpysModule(Module):
    """Numbers of NumPy are among its rates."""

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=np.float32(0.05))
        cosine = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: np.cos(step / 10))
        return [optimizer], [{"scheduler": cosine, "interval": "step"}]


class SteepPlateauModule(Module):
    """Looks at its loss after each step."""

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.9)
        settings = {"interval": "step", "frequency": 2, "monitor": "train/mse_step"}
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, **settings}}


class SavingModule(Module):
    """Writes where its logger does, and counts in its own loaders."""

    def on_validation_end(self):
        for folder in (self.logger.log_dir, self.logger.save_dir, self.trainer.log_dir):
            (Path(folder) / f"epoch {self.current_epoch}").touch()
        self.logger.experiment.config.update({"epochs": self.current_epoch})
        with self.logger.experiment["images"] as images:
            images["last"] = images.append(1.0)
        loader = self.trainer.train_dataloader
        assert loader.batch_size * len(loader) == 96
        assert self.trainer.val_dataloaders[0].batch_size == 8


class CurriculumModule(Module):
    """Trains on other examples, and with another weight of its loss, in each epoch."""

    def on_train_epoch_start(self):
        self.factor = 1.0 + self.current_epoch
        self.head.bias.data += 1.0
        data = self.trainer.train_dataloader.dataset
        data.start, data.stop = 10 * self.current_epoch, 96 + 10 * self.current_epoch
        self.log("train/started", self.factor)

    def training_step(self, batch, batch_idx):
        return self.factor * super().training_step(batch, batch_idx)


class LoadingDataModule(DataModule):
    """Loads in a process of its own, which is another in each epoch."""

    def train_dataloader(self):
        return DataLoader(self.train, batch_size=8, shuffle=True, num_workers=1)


class TeachingModule(Module):
    """A slow copy of a layer follows it after each step, in the last hook of the batch."""

    def __init__(self):
        super().__init__()
        self.slow = copy.deepcopy(self.body).requires_grad_(False)

    def training_step(self, batch, batch_idx):
        taught = self.slow(batch["x"]).tanh() - self.body(batch["x"]).tanh()
        return super().training_step(batch, batch_idx) + taught.square().mean()

    def on_train_batch_end(self, outputs, batch, batch_idx):
        for slow, fast in zip(self.slow.parameters(), self.body.parameters(), strict=True):
            slow.data.lerp_(fast.data, 0.5)
        self.log("train/slow", self.slow.weight.mean(), on_epoch=True)


class BestModule(Module):
    """Keeps the best value of its epochs, which is the first one's, in a metric."""

    def __init__(self):
        super().__init__()
        self.best, self.examples = torchmetrics.MinMetric(), torchmetrics.SumMetric()
        self.error = torchmetrics.MeanMetric()
        self.window = torchmetrics.aggregation.RunningMean(window=4)
        self.tracker = torchmetrics.MetricTracker(torchmetrics.MeanMetric(), maximize=False)

    def on_train_start(self):
        self.best.reset()

    def on_validation_epoch_start(self):
        self.tracker.increment()

    def training_step(self, batch, batch_idx):
        self.window.update(float(batch_idx))
        self.log("train/window", self.window.compute(), on_step=False, on_epoch=True)
        self.examples(len(batch["x"]))
        self.log("train/examples", self.examples, on_step=False, on_epoch=True)
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        super().validation_step(batch, batch_idx, dataloader_idx)
        self.error(self.current_epoch + 1.0)
        if dataloader_idx == 0:
            self.log("val/error", self.error, add_dataloader_idx=False)

    def on_validation_epoch_end(self):
        self.tracker.update(self.current_epoch + 1.0)
        self.log("val/tracked", self.tracker.best_metric())
        self.best(self.error.compute())
        self.log("val/best", self.best.compute())


class LookingModule(MaskedModule):
    """Looks at training data in hooks: at a batch, for a mean of all, and for a bank of them."""

    def _all(self, loader):
        return torch.cat([batch["x"] for batch in loader])

    def on_fit_start(self):
        next(iter(self.trainer.datamodule.train_dataloader()))

    def on_train_start(self):
        next(iter(self.trainer.train_dataloader))
        self.mean = self._all(self.trainer.train_dataloader).mean()

    def on_train_epoch_start(self):
        next(iter(self.trainer.train_dataloader))

    def on_train_batch_end(self, outputs, batch, batch_idx):
        next(iter(self.trainer.train_dataloader))

    def on_validation_epoch_start(self):
        data, loader = self.trainer.datamodule, self.trainer.train_dataloader
        bank, kept = self._all(data.train_dataloader()), self._all(loader)
        self.log("val/known", float(bank.unique().numel() + kept.unique().numel()))
        self.log("val/mean", self.mean)


class KeepingModule(Module):
    """Keeps the state of a generator of its own, and what it was made with."""

    def __init__(self, width=8, lr=0.05):
        super().__init__(width, lr)
        self.own = np.random.RandomState(3)

    def training_step(self, batch, batch_idx):
        self.log("train/own", self.own.random_sample(), on_step=False, on_epoch=True)
        return super().training_step(batch, batch_idx)

    def on_save_checkpoint(self, checkpoint):
        checkpoint["own"] = self.own.get_state()
        checkpoint["hyper_parameters"]["path"] = Path()

    def on_load_checkpoint(self, checkpoint):
        assert checkpoint["hyper_parameters"]["width"] == 8
        self.own.set_state(checkpoint["own"])


class TurningStream(Stream):
    """Begins one example later at each pass."""

    passes = 0

    def __iter__(self):
        self.passes += 1
        return (self.examples[(self.passes + index) % 96] for index in range(96))


class TurningDataModule(StreamDataModule):
    def train_dataloader(self):
        return DataLoader(TurningStream(0, 96), **self.settings)


class Curriculum(Callback):
    """Sets the weight of the loss for an epoch, and keeps no state."""

    def on_train_epoch_start(self, trainer, pl_module):
        pl_module.factor = 1.0 + trainer.current_epoch


class ScheduleFreeModule(Module):
    """Trains with other weights than it evaluates, and asks for neither."""

    def configure_optimizers(self):
        return AdamWScheduleFree(self.parameters(), lr=0.01)


class TaughtModule(Module):
    """Brings the callback that says how much its loss counts."""

    def training_step(self, batch, batch_idx):
        return self.factor * super().training_step(batch, batch_idx)

    def configure_callbacks(self):
        return [Curriculum()]


class ByLength(Sampler):
    """Batches of neighbours in a random order."""

    def __init__(self, batch_size):
        super().__init__()
        self.size = batch_size

    def __iter__(self):
        firsts = range(0, 96, self.size)
        return iter(
            [range(first, first + self.size) for first in random.sample(firsts, len(firsts))]
        )


class GroupedDataModule(DataModule):
    """Groups its examples by a number of its own, or by the batch size that it is given."""

    def __init__(self, batch_size, group=None):
        super().__init__(batch_size)
        self.group = group or batch_size

    def train_dataloader(self):
        return DataLoader(self.train, batch_sampler=ByLength(self.group))
