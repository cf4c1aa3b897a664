"""Lightning callbacks whose run waits for what others do, named by `_target_` in tests."""

import time
from pathlib import Path

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback

_AT_MOST_S = 300


class UntilEnded(Callback):
    """A run with a low learning rate begins no further epoch: somebody has to end it."""

    def __init__(self, below_lr: float, after_epochs: int) -> None:
        self.below_lr, self.after_epochs = below_lr, after_epochs

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        del pl_module
        lr = trainer.optimizers[0].param_groups[0]["lr"]
        if lr < self.below_lr and trainer.current_epoch == self.after_epochs:
            time.sleep(_AT_MOST_S)


class UntilThirdRun(Callback):
    """The first run of two epochs in a folder waits until three runs have begun there."""

    def __init__(self, results: str) -> None:
        self.results = Path(results)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        del pl_module
        if trainer.max_epochs == 2 and self._is_first():
            deadline = time.monotonic() + _AT_MOST_S
            while len(list(self.results.glob("attempts/*/001"))) < 3:
                assert time.monotonic() < deadline, "no third run begins beside this one"
                time.sleep(0.05)

    def _is_first(self) -> bool:
        try:
            (self.results / "waiting").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True
