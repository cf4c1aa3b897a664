"""A plain `Trainer.fit` of a project: the weights and the batches that a run had.

`python plain_fit.py RECORD EPOCHS WORDS`: prints the largest difference to the run's last weights.
"""

import sys
from importlib import import_module

import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf
from torch import Tensor

HOOKS = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")


class Batches:
    """The batches of the epoch that a module is in; Lightning may begin one twice."""

    def __init__(self, epochs, module):
        self.epochs, self.module = epochs, module

    def __len__(self):
        return len(self.epochs[0])

    def __iter__(self):
        return iter(self.epochs[self.module.current_epoch])


def main():
    kept = torch.load(sys.argv[1], weights_only=False)
    words = [word.removeprefix("+") for word in sys.argv[3:]]
    config = OmegaConf.from_dotlist(
        ["seed=0", *(word for word in words if word.startswith(("module", "data")))]
    )
    module, data = instantiate(config.module), instantiate(config.data)
    data.prepare_data()
    data.setup("fit")
    data.train_dataloader = lambda: Batches(kept["epochs"], module)
    for hook in HOOKS:  # what is kept has been through them
        own = getattr(data, hook)
        setattr(
            data, hook, lambda batch, *at, own=own: batch if module.training else own(batch, *at)
        )
    module.load_state_dict(kept["before"])
    libraries = map(import_module, ("pytorch_lightning", "lightning.pytorch"))
    library = next(it for it in libraries if isinstance(module, it.LightningModule))
    trainer = library.Trainer(
        max_epochs=int(sys.argv[2]),
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        num_sanity_val_steps=0,
        inference_mode=False,  # forces are gradients, in validation too
    )
    trainer.fit(module, datamodule=data)
    after = module.state_dict()
    moved, differs = _distance(after, kept["before"]), _distance(after, kept["after"])
    print(f"moved {moved} differs {differs}")


def _distance(state, other):
    pairs = [(value, other[name]) for name, value in state.items() if isinstance(value, Tensor)]
    return max((a.double() - b.double()).abs().max().item() for a, b in pairs if a.numel())


main()
