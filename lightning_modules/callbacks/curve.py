"""The curve: a row per evaluation, with learning rates and time spent; and reports of progress."""

import hashlib
import json
import math
import struct
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Checkpoint

from lightning_modules.callbacks.batch_contract import BatchContract
from lightning_modules.modules.steps import AroundEvaluation, current_lrs, ends_step, is_in_epoch
from lightning_modules.rank_plan import RankPlan
from sweeper.spec.noise import NOISE_COLUMNS
from sweeper.store.publish import flush_to_disk
from sweeper.store.run_columns import setting_columns
from sweeper.store.schema import ANGLE_COLUMNS
from sweeper.store.step_progress import StepProgress
from sweeper.upstream.lightnings import is_validated

_REPORT_EVERY_S = 2.0
_REPORTING_SHARE = 0.02  # at most this fraction of the time, however slow the file system is
_REPORTS_IN_RATE = 16
_ROWS_IN_STATE = 64  # at most about so many rows are in a checkpoint


class MeasuresNoise(Protocol):
    """A callback that measures something for each evaluation, and runs before the curve."""

    columns: dict[str, float | None]


class Clock(AroundEvaluation):
    """How long the run has trained, over all its attempts [seconds]."""

    def __init__(self) -> None:
        self.train_s = 0.0  # without validation
        self.elapsed_s = 0.0  # with validation, up to the last evaluation or end of an epoch
        self._started = self.began_at = time.perf_counter()  # on the clock of this process
        self._seconds_before = 0.0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the clock, at the seconds already spent since the last lap."""
        self.began_at = time.perf_counter()
        self._started = self.began_at - self._seconds_before

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Restart the clock for the epoch."""
        self._started = time.perf_counter()

    def on_steps_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Add the training time; this callback runs first, so validation is not in it."""
        self.train_s += self._seconds

    def end_lap(self) -> None:
        """Add the time since the last lap, with validation."""
        self.elapsed_s += self._seconds
        self._started = time.perf_counter()

    def leave_out(self, seconds: float) -> None:
        """Count neither as training nor as elapsed what was just done."""
        self._started += seconds

    @property
    def _seconds(self) -> float:
        return time.perf_counter() - self._started

    def state_dict(self) -> dict[str, Any]:
        """The sums so far, and the seconds since the last lap."""
        return {"train_s": self.train_s, "elapsed_s": self.elapsed_s, "epoch_s": self._seconds}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.train_s, self.elapsed_s = state_dict["train_s"], state_dict["elapsed_s"]
        self._seconds_before = state_dict["epoch_s"]


class Curve(AroundEvaluation, Checkpoint):
    """Collects what other callbacks measured into a row for each evaluation.

    A `Checkpoint`, so that it runs after the module, which may log at the end of an epoch.

    Args:
        measured: callbacks that run before the curve; their columns go into the row.
        listeners: each is called with new rows after an evaluation within an epoch, or by `report`.
        file: in the attempt's folder, to which a listener appends them as lines of JSON.
    """

    def __init__(
        self,
        plan: RankPlan,
        clock: Clock,
        measured: Sequence[MeasuresNoise],
        listeners: Sequence[Callable[[list[dict[str, Any]]], None]] = (),
        *,
        file: Path | None = None,
    ) -> None:
        self._plan, self._clock, self._measured = plan, clock, measured
        self._listeners, self._reported = listeners, 0
        self._file, self._kept = file, 0  # rows in the file that a power cut leaves there
        self.rows: list[dict[str, Any]] = []  # of evaluations, as in the curves table
        self.steps = 0  # of the optimizer, so far
        self.last_lr = math.nan  # that the last step actually used
        self.lr_series_hash = ""  # chain hash of the realised learning rates, a link per step
        self._peaks = [0.0, 0.0]  # highest of the module's own rates, before and after the factor

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Record the learning rate that the optimizer used in the step."""
        if ends_step(trainer, batch_idx):
            lrs = current_lrs(trainer)
            if own := getattr(trainer.strategy, "user_lrs", None):  # before the factor
                self._peaks = [max(self._peaks[0], own[0]), max(self._peaks[1], lrs[0])]
            self.last_lr = lrs[0]
            # however many groups have one rate, it is the same series
            distinct = lrs if len(set(lrs)) > 1 else lrs[:1]
            packed = struct.pack(f"<{len(distinct)}d", *distinct)
            link = bytes.fromhex(self.lr_series_hash) + packed
            self.lr_series_hash = hashlib.blake2b(link, digest_size=8).hexdigest()
            self.steps += 1

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Add a row, if the end of the epoch is evaluated; it is reported once it is saved."""
        self._clock.end_lap()
        super().on_train_epoch_end(trainer, pl_module)

    def on_evaluated(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Add the evaluation's row."""
        epoch, plan = trainer.current_epoch, self._plan
        steps = plan.steps_in(epoch, trainer.fit_loop.batch_idx + 1)
        self._clock.end_lap()
        row = {
            "epoch": plan.epochs_completed(epoch, steps),
            "step": self.steps,
            "realised_batch": plan.split(epoch, steps - 1).global_batch,
            "examples_seen": plan.examples(epoch, steps),
            "lr": self.last_lr,
            **setting_columns(trainer.optimizers[0].param_groups[0] if trainer.optimizers else {}),
            **dict.fromkeys((*NOISE_COLUMNS, *ANGLE_COLUMNS)),
            "elapsed_s": self._clock.elapsed_s,
        }
        for callback in self._measured:
            row |= callback.columns
        self.rows.append(row)
        if is_in_epoch(trainer):
            self.report()

    def report(self) -> None:
        """Pass each row on to the listeners that this process has not passed on yet."""
        new, self._reported = self.rows[self._reported :], len(self.rows)
        for listener in self._listeners if new else ():
            listener(new)
        if self._file and self._file.exists() and self._reported - self._kept >= _ROWS_IN_STATE:
            flush_to_disk(self._file)
            self._kept = self._reported

    def state_dict(self) -> dict[str, Any]:
        """All of it, in plain containers; where the file has the first rows, only the others.

        With all rows in each, the checkpoints of a run would cost as the square of its length.
        """
        where = self._file.parts[-3:-1] if self._file else ()
        return {
            "kept": [*where, self._kept],
            "curve": self.rows[self._kept :],
            "steps": self.steps,
            "last_lr": self.last_lr,
            "lr_series_hash": self.lr_series_hash,
            "base_lr": self._peaks[0],
            "peak_lr": self._peaks[1],
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned; ValueError if the file has lost its first rows."""
        *where, kept = state_dict.get("kept", [0])  # earlier versions kept all in the checkpoint
        before: list[dict[str, Any]] = []
        if kept and self._file:
            run, attempt = where
            file = self._file.parents[2] / run / attempt / self._file.name
            lines = file.read_bytes().splitlines()[:kept] if file.exists() else []
            before = [json.loads(line) for line in lines]
            if len(before) < kept:
                msg = (
                    f"{file} must have the first {kept} rows of the curve; it has {len(before)}. "
                    "Remove the run's checkpoint, and it is trained from the start."
                )
                raise ValueError(msg)
        self.rows, self.steps = [*before, *state_dict["curve"]], state_dict["steps"]
        self.last_lr, self.lr_series_hash = state_dict["last_lr"], state_dict["lr_series_hash"]
        self._peaks = [state_dict["base_lr"], state_dict["peak_lr"]]


class StepReport(AroundEvaluation):
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
        self._train_s, self._examples, self._first_step_s = 0.0, 0, 0.0
        self._recent: deque[tuple[float, int]] = deque(maxlen=_REPORTS_IN_RATE)
        self._between_s: list[float] = []  # from the last step before an evaluation to the next
        self._is_evaluated = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note where this attempt starts, which may be midway through an epoch."""
        before = self._plan.step(trainer.current_epoch, 0) + self._contract.steps
        self._resumed_at = self._plan.position(before)
        self._last_step_at = time.perf_counter()

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep what came before this epoch out of the training time."""
        self._end_pause()

    def on_evaluated(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep an evaluation within an epoch out of the training time."""
        if is_in_epoch(trainer):
            self._end_pause()

    def _end_pause(self) -> None:
        now = time.perf_counter()
        if self._is_evaluated:
            self._between_s.append(now - self._last_step_at)
        self._last_step_at, self._is_evaluated = now, False

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count a step; report when due, and at the last step of an epoch already reported on."""
        if not ends_step(trainer, batch_idx):
            return
        now, epoch = time.perf_counter(), trainer.current_epoch
        if self._recent:
            self._train_s += now - self._last_step_at
            self._examples += self._plan.split(epoch, self._contract.steps - 1).global_batch
        else:
            self._recent.append((0.0, 0))
            self._first_step_s = now - self._last_step_at
        self._last_step_at = now
        self._is_evaluated = is_validated(trainer)
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
        left = max(0, self._plan.examples(self._epochs) - self._plan.examples(epoch, step))
        evaluations = self._plan.evaluations_after(epoch, step) + self._is_evaluated
        between_s = sum(self._between_s) / max(1, len(self._between_s))
        return StepProgress(
            epoch=epoch + 1,
            step=step,
            steps=self._plan.steps(epoch),
            resumed_at=self._resumed_at,
            examples_per_s=rate,
            left_s=left / rate + evaluations * between_s if rate else None,
            first_step_s=None if rate else self._first_step_s,
        )
