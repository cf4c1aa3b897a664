"""SIGTERM is handled by the launcher, not by Lightning."""

import signal

from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Callback

_BROADCAST = "_broadcast_sigterm_tensor"  # private: Lightning epoch_loop._broadcast_sigterm_tensor


class LaunchersSigterm(Callback):
    """Gives SIGTERM back to whom it was given before the fit.

    Lightning's Trainer installs its own handler, which ends the fit at the next micro-batch: a
    run under SLURM would never come to the end of the step that its job waits for. Before every
    micro-batch rank 0 tells the others whether it got the signal; here it never does.
    """

    def __init__(self) -> None:
        self._before = signal.getsignal(signal.SIGTERM)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called after Lightning has installed its handler."""
        signal.signal(signal.SIGTERM, self._before)
        epoch_loop = trainer.fit_loop.epoch_loop
        if hasattr(epoch_loop, _BROADCAST):  # a broadcast, and on a GPU a wait for it
            setattr(epoch_loop, _BROADCAST, lambda: None)
