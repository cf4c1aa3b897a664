"""One attempt at a run, seen from outside: its folder, progress and row, and its state."""

import json
import math
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
from pydantic import Field, Strict, create_model

from sweeper.spec.config import Start
from sweeper.spec.identity import targets
from sweeper.spec.lr_rules import OwnRule
from sweeper.spec.outcomes import Outcome
from sweeper.spec.run_spec import RunSpec, read_run_spec
from sweeper.spec.values import LARGEST
from sweeper.spec.worker_args import CHECKPOINT, FIRST_STEP, GRACEFUL_STOP, KEPT, PROGRESS
from sweeper.store.checkpoint_checksum import is_sound
from sweeper.store.lease import claim, holds, is_held, release
from sweeper.store.ledger import Ledger
from sweeper.store.publish import (
    TakenOver,
    Text,
    open_partial,
    parse_as,
    publish_json,
    publish_text,
    read_as,
    read_mapping,
)
from sweeper.store.run_columns import (
    FROM_RECORD,
    RATES,
    git_commit,
    measured_row,
    metric_columns,
    planned_row,
    versions,
)
from sweeper.store.schema import CURVES, RUNS
from sweeper.store.trunks import find_start, trunk_file
from sweeper.store.user_code import read_hashes, record_code, user_code

_CANCEL, RELEASED = "cancel.txt", "released.json"
_PEAK_LR = "peak_lr.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How an attempt ended."""

    outcome: Outcome
    reason: Text


_Count = Annotated[int, Field(strict=True, ge=0, le=LARGEST)]
_Number = Annotated[float, Strict()]
#: Types of columns, as workers write their values to JSON.
_AS_JSON: Any = {pa.int64(): _Count, pa.float64(): _Number, pa.string(): Text}


def _fields(columns: Mapping[str, tuple[pa.DataType, str]], names: Iterable[str]) -> dict[str, Any]:
    """The fields of a model that reads these columns, each of which may be missing or null."""
    return {name: (_AS_JSON[columns[name][0]] | None, None) for name in names}


#: What the worker of a rank writes at its end, as far as it is read again.
_Record = create_model(
    "_Record", outcome=Outcome, reason=Text, **_fields(RUNS, ("steps", *FROM_RECORD, *RATES))
)
#: A line of progress.jsonl.
_Epoch = create_model(
    "_Epoch",
    epoch=_Count,
    **_fields(CURVES, [name for name in CURVES if name not in ("run_id", "attempt", "epoch")]),
    metrics=(dict[str, _Number | None], {}),
)


class Open(StrEnum):
    """The state of an attempt without a recorded end."""

    HELD = "running"
    ABANDONED = "abandoned"


#: How an attempt ended, or whether a live process holds it.
AttemptState = End | Open


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """An attempt at a run, claimed by making its numbered folder, which only one process can.

    `spec` has this attempt's layout; `number` is 1-based; `folder` has config.json, lease.json
    while it is held, released.json after that, and what the worker writes: log, progress, record.
    Attempts share their run's checkpoint; `started_at` is in UTC; `notes` are sentences for the
    user about problems found when it began, `resumes` where it goes on, empty from scratch.
    """

    spec: RunSpec
    number: int
    folder: Path
    started_at: datetime
    notes: Sequence[str] = ()
    resumes: str = ""

    @classmethod
    def begin(
        cls, spec: RunSpec, ledger: Ledger, number: int, *, from_scratch: bool = False
    ) -> "Attempt | None":
        """Claim an attempt: make its folder and write its config; None if another process has it.

        A damaged checkpoint is set aside, and the run then starts from scratch.
        """
        folder = ledger.attempt_folder(spec.run_id, number)
        if not claim(folder):
            return None
        with suppress(TakenOver):
            return cls._begin(spec, ledger, number, from_scratch=from_scratch)
        return None

    @classmethod
    def _begin(cls, spec: RunSpec, ledger: Ledger, number: int, *, from_scratch: bool) -> "Attempt":
        folder = ledger.attempt_folder(spec.run_id, number)
        ledger.mark_active(spec.run_id, number)
        start, is_further = cls._choose_start(spec, ledger, number, from_scratch=from_scratch)
        spec = spec.with_facts(start=start)
        facts = spec.facts.model_dump(exclude_none=True)
        config = {**spec.config.resolved, **facts, "micro_batch": spec.split.micro_batch}
        if isinstance(spec.config.lr_rule, OwnRule):  # readers of the folder do not call it
            publish_json(folder / _PEAK_LR, spec.schedule.peak_lr)
        publish_json(folder / "config.json", config)
        attempt = cls(spec=spec, number=number, folder=folder, started_at=datetime.now(UTC))
        attempt._check_ours()
        if from_scratch or is_further:
            attempt.checkpoint.unlink(missing_ok=True)
        for left in folder.parent.glob(KEPT.format("*")) if from_scratch else ():
            left.unlink(missing_ok=True)
        code = user_code(targets(config))  # which the ranks are about to import
        before = ledger.attempt_folder(spec.run_id, number - 1)
        is_resumed = attempt.checkpoint.exists()
        attempt = replace(attempt, resumes=attempt._describe_resume()) if is_resumed else attempt
        if not is_resumed and (begun := start or spec.config.branch):
            before = ledger.attempt_folder(begun.run, ledger.last_attempt(begun.run))
            is_resumed = True
        if start and not attempt.checkpoint.exists():
            attempt = replace(attempt, resumes=f"begins after step {start.steps:,} of its trunk")
        record_code(code, folder, ledger.results, resumed=before if is_resumed else None)
        if is_sound(attempt.checkpoint):
            attempt._check_ours()
            return attempt
        attempt._check_ours()
        aside = attempt.checkpoint.replace(folder / "damaged.ckpt")
        record_code(code, folder, ledger.results)
        note = f"Warning: {attempt.checkpoint} is damaged: moved to {aside}, trained from scratch."
        return replace(attempt, notes=[note], resumes="")

    @classmethod
    def _choose_start(
        cls, spec: RunSpec, ledger: Ledger, number: int, *, from_scratch: bool
    ) -> tuple[Start | None, bool]:
        """Where its run begins on a trunk, and whether that is further than its own checkpoint.

        Damaged checkpoints of the trunk are removed.
        """
        start = find_start(spec, ledger.results)
        while start and not is_sound(file := trunk_file(spec, start, ledger.results)):
            file.unlink(missing_ok=True)
            start = find_start(spec, ledger.results)
        before = cls.load(ledger, spec.run_id, number - 1)
        if from_scratch or before is None or not before.checkpoint.exists():
            return start, False
        begun = before.spec.facts.start
        if start and start != begun and start.run != spec.run_id:
            is_further = start.steps > before.steps()
            return (start if is_further else begun), is_further
        return begun, False

    @classmethod
    def load(cls, ledger: Ledger, run_id: str, number: int) -> "Attempt | None":
        """An attempt that another process made; None if its config is missing or not valid here.

        Nothing that the config names is imported or called.
        """
        folder = ledger.attempt_folder(run_id, number)
        try:
            peak_lr = read_as(float, folder / _PEAK_LR)
            noted_lr = math.nan if peak_lr is None else peak_lr
            spec = read_run_spec(read_mapping(folder / "config.json"), noted_lr)
            started = (folder / "config.json").stat().st_mtime
        except (OSError, ValueError, TypeError):
            return None
        if spec.run_id != run_id:  # from another version of this code, or foreign
            return None
        at = datetime.fromtimestamp(started, UTC)
        return cls(spec=spec, number=number, folder=folder, started_at=at)

    @property
    def checkpoint(self) -> Path:
        """The run's checkpoint, which its attempts share."""
        return self.folder.parent / CHECKPOINT

    @property
    def is_taken_over(self) -> bool:
        """Whether another process has it or a later one, as its holder was presumed dead."""
        return not self.is_ours or self.folder.with_name(f"{self.number + 1:03d}").exists()

    @property
    def is_ours(self) -> bool:
        """Whether this process holds it, and no other has taken it over."""
        return holds(self.folder)

    def _describe_resume(self) -> str:
        """Where the attempt before left the run: `resumes after epoch 4`."""
        number = self.number - 1
        before = replace(self, number=number, folder=self.folder.with_name(f"{number:03d}"))
        epochs = [row["epoch"] for row in before.curve()]
        where = f"after epoch {epochs[-1]}" if epochs else "from its checkpoint"
        return f"resumes {before.record()['reason'] if before.was_stopped else where}"

    def request_cancel(self, reason: str) -> None:
        """Ask the process that holds this attempt to end it at once, preempted for this reason."""
        publish_text(self.folder / _CANCEL, reason)

    def cancel_reason(self) -> str | None:
        """Why this attempt should be ended; None if it should not."""
        try:
            return (self.folder / _CANCEL).read_text(errors="replace")
        except OSError:
            return None

    def request_graceful_stop(self) -> None:
        """Ask the ranks to checkpoint after the current step and exit; ignore a failing disk."""
        with suppress(OSError):
            (self.folder / GRACEFUL_STOP).touch()

    @property
    def has_graceful_stop(self) -> bool:
        """Whether the ranks were asked to checkpoint and exit."""
        return (self.folder / GRACEFUL_STOP).exists()

    def is_early_failure(self, end: End) -> bool:
        """Whether it failed before its first optimizer step, which does not settle the run."""
        return end.outcome == Outcome.FAILED and not (self.folder / FIRST_STEP).exists()

    def unsaved_s(self) -> float:
        """Time since the last checkpoint or the start; inf if the clock was set back [seconds]."""
        marks = (self.folder / "config.json", self.checkpoint)
        times = [mark.stat().st_mtime for mark in marks if mark.exists()]
        age_s = time.time() - max(times) if times else 0.0
        return age_s if age_s >= 0 else math.inf

    def end(self, end: End, ledger: Ledger) -> bool:
        """Publish the attempt's row and curve, then release it; False if it is no longer ours."""
        try:
            self._check_ours()
            row = self.row(end, ledger.results)
            ledger.publish(row, self.curve(), within=self.folder, check=self._check_ours)
            self.settle(end, ledger)
        except TakenOver:
            return False
        except FileNotFoundError:  # removed by who has taken it over
            if self.is_ours:
                raise
            return False
        return True

    def settle(self, end: End, ledger: Ledger) -> None:
        """Once its row is published: remove what is no longer needed, and release the attempt.

        Its own files are removed while it is still held. Raises `TakenOver` if it is not.
        """
        is_last_use = end.outcome.is_result and self.spec.config.keep_checkpoint is not True
        if is_last_use and not self.is_taken_over:
            self.checkpoint.unlink(missing_ok=True)
        remove_leftovers(self.folder)
        with open_partial(self.folder / RELEASED, check=self._check_ours) as partial:
            partial.write_text(json.dumps(asdict(end), indent=1))
        release(self.folder)
        ledger.mark_inactive(self.spec.run_id, self.number)

    def _check_ours(self) -> None:
        if not self.is_ours:
            raise TakenOver

    def curve(self) -> list[dict[str, Any]]:
        """The rows of its evaluations, up to the first truncated or damaged line."""
        return self._read_curve()[0]

    def _read_curve(self) -> tuple[list[dict[str, Any]], bool]:
        """The curve, and whether each line is intact, but for a last line truncated by a kill."""
        try:
            content = (self.folder / PROGRESS).read_bytes()
        except FileNotFoundError:
            return [], True
        except OSError:
            return [], False
        lines = [line for line in content.splitlines(keepends=True) if line.endswith(b"\n")]
        epochs = takewhile(bool, (parse_as(_Epoch, line) for line in lines))
        rows = [row.model_dump(exclude_unset=True) for row in epochs if row]
        return rows, len(rows) == len(lines)

    def steps(self) -> int:
        """Optimizer steps of the run, as last recorded by this attempt [steps]."""
        return measured_row(self.record(), self.curve())["steps"] or 0

    def end_of_stopped(self, why: Callable[[], str]) -> End:
        """How an attempt ended that has no live ranks: as rank 0 recorded, else as preempted."""
        rows, is_intact = self._read_curve()
        if is_intact and (record := self.record()):
            return end_from_record(record, why)
        is_first = rows or self.number == 1
        where = "before it had resumed"
        if is_first:
            where = f"after epoch {rows[-1]['epoch'] if rows else 0}"
        return End(outcome=Outcome.PREEMPTED, reason=f"{why()} {where}")

    def record(self, rank: int = 0) -> dict[str, Any]:
        """The record that a rank's worker wrote; empty if there is none or it cannot be read."""
        found = read_as(_Record, self.folder / f"record-{rank}.json")
        return found.model_dump(exclude_unset=True) if found else {}

    @property
    def was_stopped(self) -> bool:
        """Whether it was saved and stopped as it was asked to, rather than killed."""
        record = self.record()
        return record.get("outcome") == Outcome.PREEMPTED and record["reason"].startswith("after ")

    def first_record(self, ranks: Iterable[int]) -> tuple[int, dict[str, Any]] | None:
        """The earliest record of these ranks: the other ranks failed because of that rank."""
        paths = [(rank, self.folder / f"record-{rank}.json") for rank in ranks]
        left = [(path.stat().st_mtime_ns, rank) for rank, path in paths if path.exists()]
        if not left:
            return None
        rank = min(left)[1]
        record = self.record(rank)
        return (rank, record) if record else None

    def row(self, end: End, results: Path) -> dict[str, Any]:
        """The attempt's row of the runs table."""
        measured = measured_row(self.record(), self.curve())
        if measured["steps"] is None and self.is_early_failure(end):
            measured["steps"] = 0
        code, *earlier = read_hashes(self.folder) or [None]
        return {
            **planned_row(self.spec),
            **measured,
            **metric_columns(self.curve(), self.spec.config),
            **asdict(end),
            "attempt": self.number,
            "started_at": self.started_at,
            "host": socket.gethostname(),
            "code_hash": code,
            "resumed_code": ",".join(filter(None, earlier)) or None,
            "git_commit": git_commit(),
            "versions": versions(),
            "log_path": str((self.folder / "log.txt").relative_to(results)),
        }


def end_from_record(record: Mapping[str, Any], why_stopped: Callable[[], str]) -> End:
    """The end that a record states; for a graceful stop the record lacks the reason, added here."""
    end = End(outcome=Outcome(record["outcome"]), reason=record["reason"])
    if end.outcome != Outcome.PREEMPTED:
        return end
    return replace(end, reason=f"{why_stopped()} {end.reason}")


def remove_leftovers(folder: Path) -> None:
    """Remove the files that an attempt needed only while it was running, and half-written ones.

    All of them bear its number or are in its folder: a later attempt may be writing right now.
    """
    here = ("rendezvous", GRACEFUL_STOP, "*.tmp", ".now-*")
    left = [path for pattern in here for path in folder.glob(pattern)]
    for path in (*left, *folder.parent.glob(f"*.{folder.name}.tmp")):
        path.unlink(missing_ok=True)


def attempt_state(ledger: Ledger, run_id: str, number: int) -> AttemptState:
    """The state of an attempt."""
    folder = ledger.attempt_folder(run_id, number)
    released = read_as(End, folder / RELEASED)
    return released or (Open.HELD if is_held(folder) else Open.ABANDONED)


def is_cancelled(folder: Path) -> bool:
    """Whether an attempt was to be ended for good, as one of a pruned trial is."""
    return (folder / _CANCEL).exists()
