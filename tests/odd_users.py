"""Modules that do what many projects do, and that layers or rates of the run could break."""

from pathlib import Path

import lightning as L
import numpy as np
import torch
import torchmetrics
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader
from users import DataModule, Module


class FrozenModule(Module):
    """A part is frozen and in evaluation from the start; another's BatchNorm is, by its class."""

    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(4)).requires_grad_(False)
        self.body = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), self.body)
        self.backbone.eval()

    def on_train_epoch_start(self):
        for layer in self.body.modules():
            if isinstance(layer, nn.BatchNorm1d):
                layer.eval()

    def training_step(self, batch, batch_idx):
        x = self.backbone(batch["x"])
        assert torch.allclose(x, batch["x"], rtol=1e-4)
        return super().training_step({**batch, "x": x}, batch_idx)

    def on_train_end(self):
        for name, buffer in self.named_buffers():
            assert "running_mean" not in name or not buffer.any()


class TwiceModule(Module):
    """Passes two views of a batch through one BatchNorm, one after the other."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.BatchNorm1d(4), self.body)

    def training_step(self, batch, batch_idx):
        losses = [super(TwiceModule, self).training_step(batch, batch_idx) for _ in range(2)]
        return sum(losses) / 2


class DroppingModule(Module):
    """Drops entries of all examples at once; in validation too, for the spread of its answers."""

    def __init__(self, p=0.5):
        super().__init__()
        self.drop = nn.Dropout(p)

    def training_step(self, batch, batch_idx):
        dropped = self.drop(batch["x"].flatten()[1:])
        x = torch.cat([batch["x"].flatten()[:1], dropped]).view_as(batch["x"])
        return super().training_step({**batch, "x": x}, batch_idx)

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        for layer in self.modules():
            if isinstance(layer, nn.Dropout):
                layer.train()
        super().validation_step(batch, batch_idx, dataloader_idx)
        self.log("val/spread", (self.drop(batch["x"]) - self.drop(batch["x"])).std())


class AnnealedModule(Module):
    """Ends its dropout by setting `p` of all dropout layers."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(self.body, nn.Dropout(0.5))

    def on_train_epoch_start(self):
        for layer in self.modules():
            if isinstance(layer, nn.Dropout):
                layer.p = 0.0


class SettingModule(Module):
    """Sets its rates itself, in the middle of a step."""

    def training_step(self, batch, batch_idx):
        self._set(self.optimizers().optimizer)
        return super().training_step(batch, batch_idx)

    def _set(self, optimizer):
        for group in optimizer.param_groups:
            group["lr"] = 0.01 * (1 + self.global_step)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1.0)


class AdamModule(Module):
    """Two groups with settings of their own; others may write them."""

    def configure_optimizers(self):
        groups = [
            {"params": self.body.parameters(), "weight_decay": 0.1},
            {"params": self.head.parameters(), "weight_decay": 0.0, "betas": (0.8, 0.99)},
        ]
        return torch.optim.AdamW(groups, lr=0.01)


class CyclingModule(AdamModule):
    """OneCycle by step, which writes the first beta."""

    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        one_cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, 9)
        return [optimizer], [{"scheduler": one_cycle, "interval": "step"}]


class DecayingModule(AdamModule):
    """Raises its weight decay at every step."""

    def on_before_optimizer_step(self, optimizer):
        for group in optimizer.param_groups:
            group["weight_decay"] += 0.01


class LateSettingModule(SettingModule):
    """Sets its rates last of all."""

    def training_step(self, batch, batch_idx):
        return Module.training_step(self, batch, batch_idx)

    def on_before_optimizer_step(self, optimizer):
        self._set(optimizer)


class EverySecondModule(Module):
    """Its rate is halved at every second step."""

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        scheduler = {"scheduler": StepLR(optimizer, 1, 0.5), "interval": "step", "frequency": 2}
        return {"optimizer": optimizer, "lr_scheduler": scheduler}


class CentredModule(Module):
    """A buffer follows the batches of its own rank."""

    def __init__(self):
        super().__init__()
        self.register_buffer("centre", torch.zeros(4))

    def training_step(self, batch, batch_idx):
        self.centre.lerp_(batch["x"].mean(0).to(self.centre), 0.1)
        return super().training_step({**batch, "x": batch["x"] - self.centre}, batch_idx)

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        super().validation_step(batch, batch_idx, dataloader_idx)
        self.log("val/centre", self.centre[0])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class LangevinModule(Module):
    """Adds noise to the gradient of each step, then again as it steps."""

    def on_before_optimizer_step(self, optimizer):
        self.head.weight.grad += 0.1 * torch.randn_like(self.head.weight)

    def configure_optimizers(self):
        return Langevin(self.parameters(), lr=0.05)


class Langevin(torch.optim.SGD):
    def step(self, closure=None):
        loss = super().step(closure)
        for group in self.param_groups:
            for p in group["params"]:
                p.data += 0.01 * torch.randn_like(p)
        return loss


class CodebookModule(Module):
    """What is not trained by gradients follows the examples of its own rank."""

    def __init__(self):
        super().__init__()
        self.code = nn.Parameter(torch.zeros(4), requires_grad=False)

    def training_step(self, batch, batch_idx):
        self.code.data.lerp_(batch["x"].mean(0).to(self.code), 0.1)
        return super().training_step(batch, batch_idx)


class UnfreezingModule(Module):
    """Trains one layer from the second epoch on."""

    def __init__(self):
        super().__init__()
        self.body.requires_grad_(False)

    def on_train_epoch_start(self):
        self.body.requires_grad_(self.current_epoch > 0)


class RestingModule(UnfreezingModule):
    """One layer is in evaluation from the start of each epoch."""

    def __init__(self):
        super().__init__()
        self.head = nn.Sequential(nn.Dropout(0.5), self.head)

    def on_train_epoch_start(self):
        super().on_train_epoch_start()
        self.head.eval()


class Averaging(L.pytorch.callbacks.StochasticWeightAveraging):
    pass


class AveragingModule(Module):
    """Brings a callback of its own."""

    def configure_callbacks(self):
        return [Averaging(swa_lrs=0.01)]


class LazyModule(Module):
    def __init__(self):
        super().__init__()
        self.body = nn.LazyLinear(8)


class IdleModule(Module):
    def configure_optimizers(self):
        return None


class RatelessModule(Module):
    """Its optimizer finds its rates itself, as Adafactor may."""

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        optimizer.param_groups[0]["lr"] = None
        return optimizer


class HalfBareGan(L.LightningModule):
    """Steps one of its two optimizers behind Lightning's back."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.one, self.other = nn.Linear(4, 1), nn.Linear(4, 1)

    def training_step(self, batch, batch_idx):
        bare = self.optimizers(use_pl_optimizer=False)[1]
        for layer, optimizer in ((self.one, self.optimizers()[0]), (self.other, bare)):
            optimizer.zero_grad()
            self.manual_backward((layer(batch["x"]) - batch["y"]).square().mean())
            optimizer.step()

    def configure_optimizers(self):
        return [torch.optim.SGD(part.parameters(), lr=0.1) for part in (self.one, self.other)]


class ArrayModule(Module):
    """Saves an array of NumPy."""

    def on_save_checkpoint(self, checkpoint):
        checkpoint["mine"] = np.arange(3.0)


class Kept:
    """An object of the project's own."""

    def __init__(self):
        self.path, self.names = Path("mine"), np.array(["one", "two"])


class PathModule(Module):
    """Saves an object."""

    def on_save_checkpoint(self, checkpoint):
        checkpoint["mine"] = Kept()


class PlainModule(Module):
    """Saves what torch and torchmetrics have made, as darts' N-BEATS does."""

    def on_save_checkpoint(self, checkpoint):
        checkpoint["mine"] = [nn.MSELoss(), torchmetrics.MeanMetric(), nn.Linear(2, 2)]


class LambdaModule(Module):
    """Saves what nothing can pickle."""

    def on_save_checkpoint(self, checkpoint):
        checkpoint["mine"] = lambda: 0


class ConfigModule(Module):
    """Is created with a DictConfig."""

    def __init__(self, cfg):
        super().__init__(lr=cfg.optim.lr)
        self.cfg = cfg
        self.save_hyperparameters()


class SteppedModule(Module):
    """Logs its loss of each step alone, as Lightning does by default."""

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.log("loss", loss)
        return loss


class TwofoldModule(SteppedModule):
    """Logs a loss of the same name in validation."""

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        if dataloader_idx == 0:
            for name in ("loss", "val/target"):
                self.log(name, batch["y"].mean(), add_dataloader_idx=False)


class LoadedModule(Module):
    """Has data of its own."""

    def train_dataloader(self):
        return DataLoader([{"x": torch.zeros(4), "y": torch.zeros(1)}] * 32)


class UnvalidatedDataModule(DataModule):
    """Validates on nothing."""

    val_dataloader = L.LightningDataModule.val_dataloader


class AskingDataModule(UnvalidatedDataModule):
    """Asks its Trainer."""

    def setup(self, stage):
        assert self.trainer.world_size == 1
        super().setup(stage)


class NamedModule(Module):
    def __init__(self, batch_size=7):
        super().__init__()
        self.save_hyperparameters()


class NamedDataModule(DataModule):
    """Keeps what the module keeps under the same name."""

    def __init__(self, batch_size):
        super().__init__(batch_size)
        self.save_hyperparameters()
