"""Modules that make their learning rates from what the Trainer counts."""

import os

import torch
import torch.distributed as dist
from torch.optim.lr_scheduler import LambdaLR
from users import Module

COUNTS = []  # (hook, what the Trainer showed)


class CountingModule(Module):
    """A Noam-like schedule over steps, as chemprop makes it, and notes of all counts."""

    def note(self, hook):
        trainer = self.trainer
        loader = trainer.datamodule.train_dataloader()
        seen = {
            "steps": trainer.estimated_stepping_batches if hook != "setup" else None,
            "batches": trainer.num_training_batches if hook == "configure_optimizers" else None,
            "loader": len(loader),
            "batch": (loader.batch_size, trainer.datamodule.batch_size),
            "accumulation": trainer.accumulate_grad_batches,
            "ranks": (trainer.world_size, trainer.num_nodes, trainer.num_devices),
        }
        if hook == "configure_optimizers":
            seen["loaded"] = len(trainer.train_dataloader), trainer.train_dataloader.batch_size
        COUNTS.append((hook, seen))

    def setup(self, stage):
        self.note("setup")

    def configure_model(self):
        self.note("configure_model")

    def configure_optimizers(self):
        self.note("configure_optimizers")
        warmup = max(1, self.trainer.num_training_batches)
        optimizer = torch.optim.Adam(self.parameters(), 0.01 * self.trainer.world_size)
        schedule = LambdaLR(optimizer, lambda step: min((step + 1) / warmup, warmup / (step + 1)))
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


class LongModule(Module):
    """Warms up for ten epochs, and refuses a training that is shorter."""

    def configure_optimizers(self):
        assert self.trainer.max_epochs > 10
        return super().configure_optimizers()


class RankedModule(Module):
    """A rate in proportion to the number of processes."""

    def configure_optimizers(self):
        ranks = dist.get_world_size() if dist.is_initialized() else 1
        return torch.optim.SGD(self.parameters(), 0.01 * ranks)


class EnvModule(Module):
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01 * int(os.environ.get("WORLD_SIZE", "1")))
