"""Checkpoint and graceful stop: a run is saved where its plan says, or saved and stopped."""

import math
import os
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Callback, Checkpoint

from lightning_modules.callbacks.batch_contract import BatchContract
from lightning_modules.callbacks.curve import Clock
from lightning_modules.modules.classifier import Classifier
from lightning_modules.modules.steps import ends_step, is_in_epoch
from lightning_modules.optimizers.run_strategy import RunStrategy
from lightning_modules.process.saved_classes import drop_hyperparameters
from lightning_modules.process.world import num_ranks
from lightning_modules.rank_plan import RankPlan
from lightning_modules.run_class import run_class
from sweeper.store.checkpoint_checksum import seal
from sweeper.store.publish import flush_to_disk, name_path_in_errors
from sweeper.upstream.lightnings import call_after_micro_batch, stop_broadcasting_sigterm

_SECONDS_BETWEEN_POLLS = 1.0


class Stopped(Exception):
    """The run was saved and stopped before its end, as requested; the text says where."""


class StopRequest:
    """Whether to stop or save: asked about once a second, with the same answer on all ranks.

    Ranks do not reach a step at the same time, so rank 0 also broadcasts after how many steps they
    poll again; in between nothing is sent.

    Args:
        is_requested: whether the run is to stop; only rank 0 asks.
        save_every_s: time between saves, on the clock of rank 0 [seconds].

    Attributes:
        is_save_due: whether the run is to be saved now.
    """

    def __init__(
        self, is_requested: Callable[[], bool], *, rank: int, save_every_s: float = math.inf
    ) -> None:
        self._is_requested, self._rank, self._save_every_s = is_requested, rank, save_every_s
        self._steps_between = self._steps_left = 1
        self._polled_at = self._saved_at = time.perf_counter()
        self.is_save_due = False

    def note_saved(self) -> None:
        """Wait for the whole time again."""
        self._saved_at, self.is_save_due = time.perf_counter(), False

    def is_due(self, device: torch.device) -> bool:
        """Whether to stop after this step; all ranks call it after each step."""
        self._steps_left -= 1
        return self._steps_left <= 0 and self.poll(device)

    def poll(self, device: torch.device) -> bool:
        """Whether to stop now; a collective call, which all ranks make at the same point."""
        is_requested = False
        if self._rank == 0:
            is_requested, now = self._is_requested(), time.perf_counter()
            steps = max(1, self._steps_between - self._steps_left)  # an epoch's end polls early
            step_s = max(now - self._polled_at, 1e-9) / steps
            self._polled_at = now
            self.is_save_due = now - self._saved_at >= self._save_every_s
            # as many as fill the interval, but at most twice the last number,
            # as later steps may be slower
            wanted = min(2 * self._steps_between, round(_SECONDS_BETWEEN_POLLS / step_s))
            self._steps_between = max(1, wanted)
        if num_ranks() > 1:
            asked = [is_requested, self.is_save_due, self._steps_between]
            answer = torch.tensor(asked, device=device)
            dist.broadcast(answer, src=0)
            is_requested, self.is_save_due = bool(answer[0]), bool(answer[1])
            self._steps_between = int(answer[2])
        self._steps_left = self._steps_between
        return is_requested


class RunCheckpoint(Checkpoint):
    """Replaces the run's checkpoint where the plan or the clock says, and on a stop request.

    Within an epoch it is saved after a step and its evaluation. At the end of an epoch, Lightning
    calls `Checkpoint` callbacks after all others and the module.

    Args:
        attempt: name of the attempt, part of the name of the temporary file.
        clock: leaves out the time of saving within an epoch.
        can_stop: whether all ranks have the same weights after the last step.
        on_epoch: called when an epoch is over and saved, if it is to be, and when training starts.
    """

    def __init__(
        self,
        path: Path,
        *,
        attempt: str,
        plan: RankPlan,
        contract: BatchContract,
        stop: StopRequest,
        clock: Clock,
        can_stop: Callable[[], bool],
        on_epoch: Callable[[], None],
    ) -> None:
        self._path, self._partial = path, path.with_suffix(f".{attempt}.tmp")
        self._attempt = attempt
        self._plan, self._contract = plan, contract
        self._stop, self._clock, self._can_stop, self._on_epoch = stop, clock, can_stop, on_epoch
        self._is_over = self._is_saving = self._is_due = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Report the epochs of a resumed run; train no more if it had already ended early."""
        trainer.should_stop |= self._is_over
        self._on_epoch()

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Act after each step, and after the module's own hook when a checkpoint is made."""

        def save_or_stop() -> None:
            """Save, or save and stop, inside the epoch if that is due; raises `Stopped`."""
            if not (ends_step(trainer, trainer.fit_loop.batch_idx) and is_in_epoch(trainer)):
                return  # after an epoch's last step, the hook of its end saves
            epoch, step = trainer.current_epoch, self._contract.steps
            kept = self._plan.kept_files(self._path.parent, epoch, step)
            self._is_due |= bool(kept) or self._plan.is_saved(epoch, step)  # until ranks agree
            if not self._can_stop():
                return
            is_stop = self._stop.is_due(pl_module.device)
            if is_stop or self._is_due or self._stop.is_save_due:
                began_at = time.perf_counter()
                self._save(trainer, kept)
                self._clock.leave_out(time.perf_counter() - began_at)  # it stands between epochs
            if is_stop:
                msg = f"after {step} of {self._plan.steps(epoch)} steps of epoch {epoch + 1}"
                raise Stopped(msg)

        def name_weights(own: Callable[..., None], checkpoint: dict[str, Any]) -> None:
            """Add what is evaluated under the names of the user's model, and drop hyperparameters.

            The config has these, and they may be any object.
            """
            if self._is_saving:
                drop_hyperparameters(own, checkpoint)
            else:
                own(checkpoint)
            evaluated: dict[str, Any] = checkpoint.get(
                "evaluated_weights", checkpoint["state_dict"]
            )
            prefix = "model." if isinstance(pl_module, Classifier) else ""
            checkpoint["evaluated_weights"] = {
                k.removeprefix(prefix): v for k, v in evaluated.items()
            }

        call_after_micro_batch(trainer, save_or_stop)
        run_class(pl_module).wrap("on_save_checkpoint", name_weights)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save if that is due, and stop if that is requested before the run's end.

        Raises `Stopped` when the run is saved.
        """
        if self._plan.has_own_module and isinstance(trainer.strategy, RunStrategy):
            trainer.strategy.check_agreement()  # after the last callback's turn in the epoch
        self._is_over = trainer.should_stop  # Lightning does not save what a callback set
        epoch, epochs = trainer.current_epoch, trainer.current_epoch + 1
        is_last = trainer.should_stop or epochs == trainer.max_epochs
        steps = self._plan.steps(epoch)
        kept = self._plan.kept_files(self._path.parent, epoch, steps)
        is_due = bool(kept) or is_last or self._is_due or self._plan.is_saved(epoch, steps)
        if is_due:
            self._save(trainer, kept)
        self._on_epoch()
        is_stop = not is_last and self._stop.poll(pl_module.device)
        if not is_due and (is_stop or self._stop.is_save_due):
            self._save(trainer)
        if is_stop:
            msg = f"after epoch {epochs}"
            raise Stopped(msg)

    def state_dict(self) -> dict[str, Any]:
        """Whether the run has ended before its last epoch, and which run it is, of which trunk."""
        ids = {"run_id": self._path.parent.name, "trunk_id": self._plan.trunk_id}
        return {"is_over": self._is_over, **ids}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned; ValueError if the checkpoint is of another run."""
        own = self._path.parent.name
        trunk_id = self._plan.trunk_id
        if self._is_parents(state_dict) or (trunk_id and state_dict.get("trunk_id") == trunk_id):
            return
        if (made_by := state_dict.get("run_id", own)) != own:
            msg = f"{self._path} must belong to run {own}; it belongs to {made_by}. Remove it."
            raise ValueError(msg)
        self._is_over = state_dict["is_over"]

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Have a branch map the settings of its optimizer anew, as at the base batch.

        ValueError if its parent's checkpoint is from another position.
        """
        branch, own = self._plan.branch, checkpoint["callbacks"][self.state_key]
        if branch is None or not self._is_parents(own):
            return
        if (place := self._plan.resumed_at) != self._plan.first:
            msg = (
                f"a branch must begin after {branch.epochs} epochs of {branch.run}; its checkpoint "
                f"is from step {place[1]} of epoch {place[0] + 1}. Train that run again."
            )
            raise ValueError(msg)
        for state in checkpoint["optimizer_states"]:
            for group in state["param_groups"]:
                group.update(group.pop("at_base_batch", {}))

    def _is_parents(self, state_dict: dict[str, Any]) -> bool:
        branch = self._plan.branch
        return branch is not None and state_dict.get("run_id") == branch.run

    def _save(self, trainer: Trainer, kept: Sequence[Path] = ()) -> None:
        self._is_saving = True
        with name_path_in_errors(self._path):
            if trainer.is_global_zero:
                self._check_ours()
                self._partial.touch()  # fails if results were moved; Lightning would make a folder
            trainer.save_checkpoint(self._partial)
            if trainer.is_global_zero:
                seal(self._partial)
                flush_to_disk(self._partial)
                self._check_ours()  # again: saving takes time, or this process slept
                for file in kept:  # first: a run that resumes from here does not come back
                    copy = self._path.with_name(f"{file.stem}.{self._attempt}.tmp")
                    shutil.copyfile(self._partial, copy)
                    flush_to_disk(copy)
                    file.parent.mkdir(parents=True, exist_ok=True)
                    copy.replace(file)
                self._partial.replace(self._path)
        self._is_saving = self._is_due = False
        self._stop.note_saved()

    def _check_ours(self) -> None:
        """RuntimeError if a later attempt has the checkpoint, as this one's launcher slept."""
        names = os.listdir(self._path.parent)  # noqa: PTH208  network file systems look again
        if any(name.isdecimal() and name > self._attempt for name in names):
            msg = f"{self._path} must be of the run's last attempt; a later one than this has begun"
            raise RuntimeError(msg)


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
