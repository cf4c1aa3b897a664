"""A module that knows nothing of ours, trained by Lightning with one callback at a time."""

import warnings

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.plugins.environments import LightningEnvironment
from pytorch_lightning.strategies import DDPStrategy
from torch import nn
from torch.utils.data import DataLoader

from lightning_modules.rank_plan import RankPlan
from sweeper.spec.run_spec import run_spec


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
        return {"loss": (self.layers(batch[0]) ** 2).sum() / 2}

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

    @property
    def weight(self):
        return self.layers[0].weight.item()


@pytest.fixture
def line():
    return Line


@pytest.fixture
def plan(config):
    """The plan of a run of 2 epochs: steps of 4 examples as 2 micro-batches of 2."""

    def make(*, examples=8, rank=0, **words):
        data = {**config()["data"], "num_train_examples": examples}
        short = {"batch": 4, "micro_batch": 2, "bn_span": 2, "epochs": 2, "warmup": 0}
        short |= {"base_batch": 4, "schedule": {"name": "constant"}, "lr_rule": {"name": "none"}}
        return RankPlan(run_spec(config(data=data, **short | words)), rank=rank)

    return make


@pytest.fixture
def fit(tmp_path, process_group):
    """Train a module on micro-batches with some callbacks, from a checkpoint if one is given."""
    del process_group

    def run(module, callbacks, batches, *, epochs=1, accumulate=2, resume=None, save=None):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer = pl.Trainer(
                accelerator="cpu",
                devices=1,
                strategy=DDPStrategy(),
                plugins=[LightningEnvironment()],
                callbacks=callbacks,
                max_epochs=epochs,
                accumulate_grad_batches=accumulate,
                default_root_dir=tmp_path,
                use_distributed_sampler=False,
                logger=False,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
            )
            trainer.fit(module, DataLoader(batches, batch_size=None), ckpt_path=resume)
            if save is not None:
                trainer.save_checkpoint(save)
        return trainer

    return run


@pytest.fixture
def batches():
    """Micro-batches of 2 ones each: ``batches(4)``."""
    return lambda num, value=1.0: [(torch.full((2, 1), value).double(),) for _ in range(num)]
