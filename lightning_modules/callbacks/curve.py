"""The curve: a row per epoch, with learning rates and time spent; and reports of progress."""

import hashlib
import math
import struct
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Callback, Checkpoint

from lightning_modules.callbacks.batch_contract import BatchContract
from lightning_modules.callbacks.steps import AfterSteps, current_lrs, ends_step
from lightning_modules.rank_plan import RankPlan
from sweeper.store.step_progress import StepProgress

_REPORT_EVERY_S = 2.0
_REPORTING_SHARE = 0.02  # at most this fraction of the time, however slow the file system is
_REPORTS_IN_RATE = 16


class Measured(Protocol):
    """A callback that measures something in each epoch, and runs before the curve."""

    columns: dict[str, float | None]


class Clock(AfterSteps):
    """How long the run has trained, over all its attempts; validation is left out of `train_s`.

    Attributes:
        train_s: time spent training [seconds].
        elapsed_s: training and validation, up to the last epoch's end [seconds].
        began_at: when this attempt began to train, on the clock of its process [seconds].
    """

    def __init__(self) -> None:
        self.train_s = self.elapsed_s = 0.0
        self._started = self.began_at = time.perf_counter()
        self._seconds_before = 0.0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the clock, at the seconds already spent in a resumed epoch."""
        self.began_at = time.perf_counter()
        self._started = self.began_at - self._seconds_before

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Restart the clock for the epoch."""
        self._started = time.perf_counter()

    def on_steps_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Add the training time; this callback runs first, so validation is not in it."""
        self.train_s += self._seconds

    def end_epoch(self) -> None:
        """Add the time of the whole epoch, with validation."""
        self.elapsed_s += self._seconds
        self._started = time.perf_counter()

    @property
    def _seconds(self) -> float:
        return time.perf_counter() - self._started

    def state_dict(self) -> dict[str, Any]:
        """The sums so far, and the seconds of an unfinished epoch."""
        return {"train_s": self.train_s, "elapsed_s": self.elapsed_s, "epoch_s": self._seconds}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.train_s, self.elapsed_s = state_dict["train_s"], state_dict["elapsed_s"]
        self._seconds_before = state_dict["epoch_s"]


class Curve(Checkpoint):
    """Collects what other callbacks measured into a row for each epoch.

    A `Checkpoint`, so that it runs after the module, which may log at the end of an epoch.

    Args:
        measured: callbacks that run before the curve; their columns go into the row.
        listeners: each is called with new rows by `report`.

    Attributes:
        rows: a mapping per completed epoch, with the columns of the curves table; plain values.
        steps: optimizer steps taken [steps].
        last_lr: learning rate that the last step actually used.
        lr_series_hash: chain hash of the realised learning rates, a link per step.
    """

    def __init__(
        self,
        plan: RankPlan,
        clock: Clock,
        measured: Sequence[Measured],
        listeners: Sequence[Callable[[list[dict[str, Any]]], None]] = (),
    ) -> None:
        self._plan, self._clock, self._measured = plan, clock, measured
        self._listeners, self._reported = listeners, 0
        self.rows: list[dict[str, Any]] = []
        self.steps = 0
        self.last_lr = math.nan
        self.lr_series_hash = ""
        self._peaks = [0.0, 0.0]  # highest of the module's own rates, before and after the factor

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Record the learning rate that the optimizer used in the step."""
        if ends_step(trainer, batch_idx):
            lrs = current_lrs(trainer)
            if own := getattr(trainer.strategy, "own_lrs", None):  # before the factor
                self._peaks = [max(self._peaks[0], own[0]), max(self._peaks[1], lrs[0])]
            self.last_lr = lrs[0]
            distinct = lrs if len(set(lrs)) > 1 else lrs[:1]
            packed = struct.pack(f"<{len(distinct)}d", *distinct)
            link = bytes.fromhex(self.lr_series_hash) + packed
            self.lr_series_hash = hashlib.blake2b(link, digest_size=8).hexdigest()
            self.steps += 1

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Add the epoch's row."""
        epoch = trainer.current_epoch
        batch = self._plan.split(epoch).global_batch
        seen = self.rows[-1]["examples_seen"] if self.rows else 0
        self._clock.end_epoch()
        row = {
            "epoch": epoch + 1,
            "step": self.steps,
            "realised_batch": batch,
            "examples_seen": seen + self._plan.steps(epoch) * batch,
            "lr": self.last_lr,
            "noise_scale": None,
            "elapsed_s": self._clock.elapsed_s,
        }
        for callback in self._measured:
            row |= callback.columns
        self.rows.append(row)

    def report(self) -> None:
        """Pass each row on to the listeners that this process has not passed on yet."""
        new, self._reported = self.rows[self._reported :], len(self.rows)
        for listener in self._listeners if new else ():
            listener(new)

    def state_dict(self) -> dict[str, Any]:
        """All of it, in plain containers."""
        return {
            "curve": self.rows,
            "steps": self.steps,
            "last_lr": self.last_lr,
            "lr_series_hash": self.lr_series_hash,
            "base_lr": self._peaks[0],
            "peak_lr": self._peaks[1],
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.rows, self.steps = state_dict["curve"], state_dict["steps"]
        self.last_lr, self.lr_series_hash = state_dict["last_lr"], state_dict["lr_series_hash"]
        self._peaks = [state_dict["base_lr"], state_dict["peak_lr"]]


class StepReport(Callback):
    """Reports the progress within an epoch every few seconds.

    It only reads the clock of this process, and waits neither for the device nor for other ranks.

    Args:
        contract: counts the steps of the epoch; runs before this callback.
        epochs: the most that the run may train [epochs].
        report: called with the run's progress.
    """

    def __init__(
        self,
        plan: RankPlan,
        contract: BatchContract,
        *,
        epochs: int,
        report: Callable[[StepProgress], None],
    ) -> None:
        self._plan, self._contract, self._epochs, self._report = plan, contract, epochs, report
        self._resumed_at = self._last_step_at = self._next_at = 0.0
        self._reported_epoch = -1
        # Of this attempt, without its first step, which takes longer than the others.
        self._train_s, self._examples = 0.0, 0
        self._recent: deque[tuple[float, int]] = deque(maxlen=_REPORTS_IN_RATE)
        self._between_s: list[float] = []  # from an epoch's last step to the next epoch

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note where this attempt starts, which may be midway through an epoch."""
        epoch = trainer.current_epoch
        self._resumed_at = epoch + self._contract.steps / self._plan.steps(epoch)
        self._last_step_at = time.perf_counter()

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep the validation before this epoch out of the training time."""
        now = time.perf_counter()
        if self._recent:
            self._between_s.append(now - self._last_step_at)
        self._last_step_at = now

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count a step; report when due, and at the last step of an epoch already reported on."""
        if not ends_step(trainer, batch_idx):
            return
        now, epoch = time.perf_counter(), trainer.current_epoch
        if self._recent:
            self._train_s += now - self._last_step_at
            self._examples += self._plan.split(epoch).global_batch
        else:
            self._recent.append((0.0, 0))
        self._last_step_at = now
        is_last = self._contract.steps == self._plan.steps(epoch)
        if now >= self._next_at or (is_last and self._reported_epoch == epoch):
            self._report(self._progress(epoch))
            self._recent.append((self._train_s, self._examples))
            self._reported_epoch = epoch
            took_s = time.perf_counter() - now
            self._next_at = now + max(_REPORT_EVERY_S, took_s / _REPORTING_SHARE)

    def _progress(self, epoch: int) -> StepProgress:
        train_s, examples = self._recent[0]
        seconds = self._train_s - train_s
        rate = (self._examples - examples) / seconds if seconds else None
        step = self._contract.steps
        done = self._plan.examples_before(epoch) + step * self._plan.split(epoch).global_batch
        left = max(0, self._plan.examples_before(self._epochs) - done)
        between_s = sum(self._between_s) / max(1, len(self._between_s))
        return StepProgress(
            epoch=epoch + 1,
            step=step,
            steps=self._plan.steps(epoch),
            resumed_at=self._resumed_at,
            examples_per_s=rate,
            left_s=left / rate + (self._epochs - epoch) * between_s if rate else None,
        )
