"""A plain `Trainer.fit` of a project: the weights and the batches that a run had.

`python plain_fit.py RECORD EPOCHS WORDS`: prints the largest difference to the run's last weights.
"""

import sys

import pytorch_lightning as pl
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf


class Batches:
    """The batches of each epoch, one epoch at a time."""

    def __init__(self, epochs):
        self.epochs, self.next = epochs, 0

    def __len__(self):
        return len(self.epochs[0])

    def __iter__(self):
        self.next += 1
        return iter(self.epochs[self.next - 1])


def main():
    kept = torch.load(sys.argv[1], weights_only=False)
    words = [word.removeprefix("+") for word in sys.argv[3:]]
    config = OmegaConf.from_dotlist(
        ["seed=0", *(word for word in words if word.startswith(("module", "data")))]
    )
    module, data = instantiate(config.module), instantiate(config.data)
    data.prepare_data()
    data.setup("fit")
    data.train_dataloader = lambda: Batches(kept["epochs"])
    module.load_state_dict(kept["before"])
    trainer = pl.Trainer(
        max_epochs=int(sys.argv[2]),
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(module, datamodule=data)
    after = module.state_dict()
    moved = max(_distance(after[name], value) for name, value in kept["before"].items())
    differs = max(_distance(after[name], value) for name, value in kept["after"].items())
    print(f"moved {moved} differs {differs}")


def _distance(a, b):
    return (a.double() - b.double()).abs().max().item() if a.numel() else 0.0


main()
