"""A module that knows nothing of ours, and Lightning training it with one callback at a time."""

import warnings

import pytorch_lightning as pl
import torch
import torch.distributed as dist
from pytorch_lightning.callbacks import Checkpoint
from pytorch_lightning.plugins.environments import LightningEnvironment
from pytorch_lightning.strategies import DDPStrategy
from torch import nn
from torch.utils.data import DataLoader

from lightning_modules.data.batches import MicroBatches


class Line(pl.LightningModule):
    """The loss ``mean((w x)^2) / 2`` of one weight that begins at 1, by SGD with a rate of 0.1."""

    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(1, 1, bias=False), *layers).double()
        nn.init.ones_(self.layers[0].weight)
        self.losses = []

    def training_step(self, batch, batch_idx):
        del batch_idx
        outputs = self.layers(batch[0])
        loss = outputs.square().mean() / 2
        self.losses.append(loss.item())
        return {"loss": loss, "sums": {"loss": loss.detach() * len(outputs)}}

    def validation_step(self, batch, batch_idx):
        del batch_idx
        return {"sums": {"loss": (self.layers(batch[0]) ** 2).sum() / 2}}

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

    @property
    def weight(self):
        return self.layers[0].weight.item()


class Numbers:
    """A data set whose examples are their own positions.

    Attributes:
        trained: positions of the training examples that were asked for, in order.
        evaluated: positions of the validation examples that were asked for, in order.
    """

    def __init__(self, examples):
        self.num_train_examples = examples
        self.trained, self.evaluated = [], []

    def set_epoch(self, seed, epoch):
        del seed, epoch

    def train_examples(self, examples):
        self.trained += examples.tolist()
        return examples[:, None].double() / 10, examples

    def val_examples(self, start, stop):
        self.evaluated += range(start, stop)
        examples = torch.arange(start, stop)
        return examples[:, None].double(), examples


def constant_batches(num, value=1.0):
    """So many micro-batches of 2 examples each, all the same number."""
    return [(torch.full((2, 1), value).double(),) for _ in range(num)]


def train_line(  # noqa: PLR0913
    folder, module, callbacks, batches, *, val=None, epochs=1, accumulate=2, resume=None, save=None
):
    """Train a module on micro-batches with some callbacks; the process group exists already.

    Args:
        folder: for whatever Lightning writes.
        module: to train.
        callbacks: of the Trainer.
        batches: a list of micro-batches, or `MicroBatches`.
        val: micro-batches of validation.
        epochs: to train.
        accumulate: micro-batches of a step, on this rank.
        resume: checkpoint to go on from.
        save: where to save one in the end.
    """
    loader = batches if isinstance(batches, MicroBatches) else DataLoader(batches, batch_size=None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = pl.Trainer(
            accelerator="cpu",
            devices=dist.get_world_size(),
            strategy=DDPStrategy(),
            plugins=[LightningEnvironment()],
            callbacks=callbacks,
            max_epochs=epochs,
            accumulate_grad_batches=accumulate,
            default_root_dir=folder,
            use_distributed_sampler=False,
            num_sanity_val_steps=0,
            logger=False,
            enable_checkpointing=any(isinstance(one, Checkpoint) for one in callbacks),
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(module, loader, val, ckpt_path=resume)
        if save is not None:
            trainer.save_checkpoint(save)
    return trainer
