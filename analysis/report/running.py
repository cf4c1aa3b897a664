"""Runs that have not ended: those that train, from the files they write, and those that wait.

Reads only; a heartbeat is compared with this machine's clock.
"""

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from sweeper.spec.run_spec import stored_run_spec
from sweeper.store.attempt import Attempt
from sweeper.store.lease import EXPIRES_S, LEASE, holder_of
from sweeper.store.ledger import Ledger
from sweeper.store.pending_runs import pending_runs
from sweeper.store.row import metric_columns, planned_row
from sweeper.store.step_progress import read_step_progress

RUNNING, SILENT, QUEUED = "running", "silent", "queued"


def running_runs(results: Sequence[str]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Running and queued runs of results folders.

    Returns:
        Rows with columns of the runs table, where `outcome` is running, silent (no heartbeat:
        its launcher has gone, or its clock is off) or queued; and the curves of those that run.
    """
    rows: list[dict[str, Any]] = []
    curves: list[dict[str, Any]] = []
    for folder in results:
        ledger = Ledger(Path(folder))
        latest = {run_id: row.attempt for run_id, row in ledger.ended().items()}
        for run_id, number in ledger.active():
            found = _training(ledger, run_id, number)
            if found and number > latest.get(run_id, 0):
                row, curve = found
                rows.append(row | {"results": folder})
                keys = {"run_id": run_id, "attempt": number, "results": folder}
                curves += [keys | epoch.get("metrics", {}) | epoch for epoch in curve]
                latest[run_id] = number
        rows += [row | {"results": folder} for row in _queued(ledger, latest)]
    return pd.DataFrame(rows), pd.DataFrame(curves)


def progress_stamps(results: Sequence[str]) -> list[str]:
    """Texts that change with each start, end and tenth of an epoch of runs, and with queues."""
    stamps: list[str] = []
    for folder in results:
        ledger = Ledger(Path(folder))
        for run_id, number in ledger.active():
            attempt = ledger.attempt_folder(run_id, number)
            now = read_step_progress(attempt)
            tenths = int(10 * now.epochs_done) if now else 0
            stamps.append(f"{run_id} {number} {_size(attempt / 'progress.jsonl')} {tenths}")
        stamps += [f"{listed.holder} {len(listed.runs)}" for listed in pending_runs(ledger.results)]
        stamps += [path.name for path in _tickets(ledger)]
    return stamps


def _training(
    ledger: Ledger, run_id: str, number: int
) -> tuple[dict[str, Any], list[dict[str, Any]]] | None:
    """The row and the curve so far of an attempt; None if its config is not there or not known."""
    attempt = Attempt.load(ledger, run_id, number)
    if attempt is None:
        return None
    row, curve = planned_row(attempt.spec), attempt.curve()
    last = curve[-1] if curve else {}
    state, heard = _heartbeat(attempt.folder)
    row |= {name: last.get(name) for name in ("val_accuracy", "val_loss", "train_loss")}
    row |= metric_columns(curve, attempt.spec.config)
    row[row["metric_name"]] = row["metric"]
    row |= {"epochs_completed": len(curve), "wall_s": last.get("elapsed_s"), "outcome": state}
    where = f"epoch {len(curve)} of {row['epochs']}"
    if (now := read_step_progress(attempt.folder)) and now.epoch > len(curve):
        where += f", then step {now.step} of {now.steps}"
    row |= {"attempt": number, "reason": f"{where}; {heard}"}
    row["log_path"] = str((attempt.folder / "log.txt").relative_to(ledger.results))
    return row, curve


def _heartbeat(folder: Path) -> tuple[str, str]:
    holder = holder_of(folder)
    if holder is None:
        return RUNNING, "starting or ending"
    silent_s = _silent_s(folder / LEASE)
    alive = holder.is_alive()
    if alive is None:
        alive = silent_s < EXPIRES_S
    return RUNNING if alive else SILENT, f"heartbeat {silent_s:.0f} s ago on {holder.host}"


def _silent_s(lease: Path) -> float:
    try:
        return max(0.0, time.time() - lease.stat().st_mtime)
    except FileNotFoundError:  # just released
        return 0.0


def _queued(ledger: Ledger, latest: Mapping[str, int]) -> list[dict[str, Any]]:
    """Attempts that a sweep on some machine has still to begin, and those submitted to SLURM."""
    found: dict[str, dict[str, Any]] = {}
    for listed in pending_runs(ledger.results):
        why = f"queued in the sweep of process {listed.holder.pid} on {listed.holder.host}"
        found |= {line["run_id"]: {**line, "reason": why} for line in listed.runs}
    for path in _tickets(ledger):
        try:
            ticket = json.loads(path.read_text())
            spec, number = stored_run_spec(ticket["config"]), ticket["number"]
        except (OSError, ValueError, KeyError):  # it began since it was listed, or is not ours
            continue
        row = planned_row(spec) | {"attempt": number, "reason": "submitted to SLURM"}
        found[spec.run_id] = row
    return [
        row | {"outcome": QUEUED}
        for run_id, row in found.items()
        if row["attempt"] > latest.get(run_id, 0)
    ]


def _tickets(ledger: Ledger) -> list[Path]:
    folder = ledger.results / "slurm" / "queued"
    return sorted(folder.glob("[!.]*.json")) if folder.is_dir() else []


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
