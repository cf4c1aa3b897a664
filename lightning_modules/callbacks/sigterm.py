"""SIGTERM is handled by the launcher, not by Lightning."""

import signal

from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Callback

from sweeper.upstream.lightnings import stop_broadcasting_sigterm


class LaunchersSigterm(Callback):
    """Restores the SIGTERM handler that was installed before the fit.

    Lightning's Trainer installs its own handler, which ends the fit at the next micro-batch: a run
    under SLURM would never finish the step that its job waits for. Lightning's rank 0 also
    broadcasts before every micro-batch whether it got the signal; that is turned off here.
    """

    def __init__(self) -> None:
        self._before = signal.getsignal(signal.SIGTERM)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Restore the handler after Lightning has installed its own."""
        signal.signal(signal.SIGTERM, self._before)
        stop_broadcasting_sigterm(trainer)
