"""The demo grid as one would otherwise write it: a Hydra application that trains with Lightning.

    python benchmarks/peers_lightning.py -m hydra/launcher=joblib hydra.launcher.n_jobs=2 \
        batch=3840,30720 warmup=0,5,10,20 epochs=30

Default collate, default checkpoint and CSVLogger, no bar, plain BatchNorm. The views are fixed
tensors, in the peer's favour: a sweep's run sees new ones in every epoch.
"""

import os
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import hydra
import pytorch_lightning as pl
import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from pytorch_lightning.loggers import CSVLogger
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from lightning_modules.data.digits import Digits
from lightning_modules.models.small_cnn import SmallCNN

MICRO_BATCH = 3840  # as in peers.py


def tensors() -> tuple[TensorDataset, TensorDataset]:
    data = Digits(num_train_examples=61_440, num_val_examples=360, validation_fold=0)
    data.set_epoch(0, 0)
    train = TensorDataset(*data.train_examples(torch.arange(61_440)))
    return train, TensorDataset(*data.val_examples(0, 360))


class Network(pl.LightningModule):
    def __init__(self, config: DictConfig) -> None:
        super().__init__()
        self.config = config
        self.model = SmallCNN((1, 8, 8), 10, channels=[16, 32], hidden=64)

    def training_step(self, batch, _):
        images, labels = batch
        loss = functional.cross_entropy(self.model(images), labels)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, _):
        images, labels = batch
        logits = self.model(images)
        self.log("val_loss", functional.cross_entropy(logits, labels))
        self.log("val_accuracy", (logits.argmax(1) == labels).float().mean())

    def configure_optimizers(self):
        config = self.config
        peak = config.base_lr * config.batch / 256
        steps = 61_440 // config.batch

        def factor(step: int) -> float:
            epoch = step / steps
            if epoch < config.warmup:
                return (1 + epoch / config.warmup * (config.batch / 256 - 1)) / (config.batch / 256)
            return 0.1 ** sum(epoch >= milestone for milestone in (24, 28))

        optimizer = torch.optim.SGD(self.parameters(), lr=peak, momentum=0.9, weight_decay=1e-4)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def train(config: DictConfig, folder: Path) -> None:
    torch.set_num_threads(1)
    pl.seed_everything(0)
    training, validation = tensors()
    trainer = pl.Trainer(
        max_epochs=config.epochs,
        accumulate_grad_batches=config.batch // MICRO_BATCH,
        accelerator="cpu",
        devices=1,
        logger=CSVLogger(folder),
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(
        Network(config),
        DataLoader(training, batch_size=MICRO_BATCH, shuffle=True, drop_last=True),
        DataLoader(validation, batch_size=MICRO_BATCH),
    )


def main(config: DictConfig) -> None:
    train(config, Path(HydraConfig.get().runtime.output_dir))


if __name__ == "__main__":
    from hydra.core.config_store import ConfigStore

    defaults = {"batch": 3840, "warmup": 5, "epochs": 30, "base_lr": 0.025}
    ConfigStore.instance().store(name="peer", node=OmegaConf.create(defaults))
    hydra.main(version_base=None, config_name="peer")(main)()
