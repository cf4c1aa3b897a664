"""Who heeds SIGTERM: the launcher, not Lightning."""

import signal

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback


class LaunchersSigterm(Callback):
    """Gives SIGTERM back to whom it was given before the fit.

    Lightning's Trainer installs a handler of its own that ends the fit at the next micro-batch:
    a run under SLURM would never come to the end of the epoch that its job waits for.
    """

    def __init__(self) -> None:
        self._before = signal.getsignal(signal.SIGTERM)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Called after Lightning has installed its handler."""
        del trainer, pl_module
        signal.signal(signal.SIGTERM, self._before)
