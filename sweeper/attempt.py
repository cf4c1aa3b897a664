"""One attempt at a run, from outside: its folder, its progress, its row."""

import json
import platform
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sweeper.domain.outcomes import Outcome
from sweeper.domain.run_spec import RunSpec
from sweeper.ledger import Ledger


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """An attempt that has been given its folder.

    Attributes:
        spec: the run.
        number: 1-based.
        folder: holds config.json, and what the worker leaves: log, progress, record.
        checkpoint: the run's checkpoint, shared by its attempts.
        started_at: UTC.
    """

    spec: RunSpec
    number: int
    folder: Path
    checkpoint: Path
    started_at: datetime

    @classmethod
    def begin(cls, spec: RunSpec, ledger: Ledger) -> "Attempt":
        """Make the folder of the next attempt and write the run's config into it."""
        number = ledger.next_attempt(spec.run_id)
        folder = ledger.attempt_folder(spec.run_id, number)
        folder.mkdir(parents=True)
        config = {**spec.config, "micro_batch": spec.split.micro_batch}
        (folder / "config.json").write_text(json.dumps(config, indent=1))
        return cls(
            spec=spec,
            number=number,
            folder=folder,
            checkpoint=ledger.run_folder(spec.run_id) / "checkpoint.ckpt",
            started_at=datetime.now(UTC),
        )

    def curve(self) -> list[dict[str, Any]]:
        """The rows of the completed epochs; a line cut short by a kill is left out."""
        try:
            lines = (self.folder / "progress.jsonl").read_text().splitlines(keepends=True)
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def record(self, rank: int = 0) -> dict[str, Any] | None:
        """What a rank's worker left, or None if it did not come to that."""
        try:
            return json.loads((self.folder / f"record-{rank}.json").read_text())
        except FileNotFoundError:
            return None

    def row(self, outcome: Outcome, reason: str, results: Path) -> dict[str, Any]:
        """The attempt's row of the runs table."""
        record = self.record() or {}
        return {
            **_planned(self.spec),
            **_measured(record, self.spec, self.curve()),
            "outcome": outcome,
            "reason": reason,
            "attempt": self.number,
            "started_at": self.started_at,
            "host": socket.gethostname(),
            "git_commit": _git_commit(),
            "versions": _versions(),
            "log_path": str((self.folder / "log.txt").relative_to(results)),
        }


def _planned(spec: RunSpec) -> dict[str, Any]:
    config, split = spec.config, spec.split
    return {
        "run_id": spec.run_id,
        "global_batch": split.global_batch,
        "micro_batch": split.micro_batch,
        "world_size": split.world_size,
        "accumulation_steps": split.accumulation_steps,
        "steps_per_epoch": spec.steps_per_epoch,
        "warmup_epochs": float(spec.schedule.warmup_epochs),
        "lr_rule": config["lr_rule"]["name"],
        "base_lr": float(config["base_lr"]),
        "base_batch": config["base_batch"],
        "peak_lr": spec.schedule.peak_lr,
        "optimizer": _name(config["optimizer"]),
        "schedule": config["schedule"]["name"],
        "model": _name(config["model"]),
        "data": _name(config["data"]),
        "data_about": config["data"].get("about"),
        "num_train_examples": config["data"]["num_train_examples"],
        "bn_span": spec.bn_span,
        "precision": config["precision"],
        "seed": config["seed"],
        "epochs": spec.epochs,
        "config_json": json.dumps(config, sort_keys=True),
    }


def _measured(
    record: Mapping[str, Any], spec: RunSpec, curve: list[dict[str, Any]]
) -> dict[str, Any]:
    last = curve[-1] if curve else {}
    train_s = record.get("train_s")
    steps = record.get("steps") or last.get("step")
    trained = steps * spec.split.global_batch if steps else None
    return {
        "epochs_completed": len(curve),
        "steps": steps,
        **{name: last.get(name) for name in _LAST_EPOCH},
        "best_val_accuracy": max((row["val_accuracy"] for row in curve), default=None),
        "best_val_loss": min((row["val_loss"] for row in curve), default=None),
        "examples_per_s": trained / train_s if trained and train_s else None,
        **{name: record.get(name) for name in _FROM_RECORD},
    }


_LAST_EPOCH = ("val_accuracy", "val_loss", "train_loss", "train_accuracy")
_FROM_RECORD = (
    "realised_batch_min",
    "realised_batch_max",
    "lr_series_hash",
    "wall_s",
    "train_s",
    "peak_memory_gib",
    "device_kind",
    "num_parameters",
)


def _name(node: Mapping[str, Any]) -> str:
    """What a group calls its choice: its `name` where one class has many, else the class."""
    return node.get("name") or node["_target_"].rpartition(".")[2]


@cache
def _versions() -> str:
    names = ("torch", "torchvision", "pytorch-lightning", "hydra-core", "numpy")
    found = {name: version(name) for name in names}
    return json.dumps({"python": platform.python_version(), **found})


@cache
def _git_commit() -> str | None:
    """The commit of this code, with -dirty if the checkout has changes."""
    root = Path(__file__).parents[1]
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    return described.stdout.strip() or None if described.returncode == 0 else None
