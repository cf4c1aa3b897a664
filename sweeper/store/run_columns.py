"""The columns of a run's row: planned values, what an attempt measured, and the code version."""

import json
import platform
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import version
from math import isnan
from numbers import Real
from pathlib import Path
from statistics import median
from typing import Any

from sweeper.spec.config import Predicted, RunConfig
from sweeper.spec.run_spec import RunSpec
from sweeper.store.schema import SETTINGS

#: Columns that a row has from the last evaluation of its curve.
LAST_EPOCH = ("val_accuracy", "val_loss", "train_loss", "train_accuracy")
#: Columns that the worker of rank 0 records at its end.
FROM_RECORD = (
    "realised_batch_min", "realised_batch_max", "step_tokens_min", "step_tokens_max",
    "lr_series_hash", "wall_s", "start_s", "train_s", "peak_memory_gib",
    "device_kind", "num_parameters",
)  # fmt: skip
#: It records these too; where the module keeps its own optimizer, no plan knows them.
RATES = ("base_lr", "peak_lr")


def planned_row(spec: RunSpec) -> dict[str, Any]:
    """The part of a run's row that is known before it starts."""
    text = json.dumps(spec.config.resolved, sort_keys=True)
    return {**planned_columns(spec), "config_json": text}


def planned_columns(spec: RunSpec) -> dict[str, Any]:
    """The part of a run's row that is known before it starts, without the config's text."""
    config, split, predicted = spec.config, spec.split, spec.facts.predicted
    start = spec.facts.start
    return {
        "run_id": spec.run_id,
        "global_batch": split.global_batch,
        "micro_batch": split.micro_batch,
        "world_size": split.world_size,
        "strategy": config.strategy or "ddp",
        "compiled": bool(config.compile),
        "checkpoint_activations": bool(config.checkpoint_activations),
        "accumulation_steps": split.accumulation_steps,
        "steps_per_epoch": spec.steps_per_epoch,
        "warmup_epochs": float(spec.schedule.warmup_epochs),
        "lr_rule": config.lr_rule.name,
        "base_lr": config.base_lr and float(config.base_lr),
        "base_batch": config.base_batch,
        "peak_lr": spec.schedule.peak_lr if config.base_lr else None,
        **setting_columns(spec.settings),
        "optimizer": config.optimizer.name,
        "schedule": config.schedule.name,
        "model": config.model_name,
        "data": config.data.name,
        "data_about": config.data.about,
        "twin_of": config.twin_of,
        "tags": config.tags,
        "data_order": spec.facts.data_order or "global",
        "num_train_examples": config.data.num_train_examples,
        "tokens_per_example": config.tokens_per_example,
        "dropped_examples": None if config.batch_unit else spec.dropped_examples,
        "bn_span": spec.bn_span if config.bn_span else None,
        "guarantees": ", ".join(spec.facts.guarantees or ()) if config.has_own_code else None,
        "precision": config.precision,
        "branch": config.branch and f"{config.branch.run}@{config.branch.epochs}",
        "trunk": start and f"{start.run}@{start.steps}",
        "seed": config.seed,
        "epochs": spec.epochs,
        **(predicted.columns if predicted else dict.fromkeys(Predicted.names)),
        "predicted_memory_gib": spec.facts.predicted_memory_gib,
    }


def measured_row(record: Mapping[str, Any], curve: list[dict[str, Any]]) -> dict[str, Any]:
    """The measurements of an attempt.

    `record` is what rank 0 wrote at its end, empty if it did not get there; `curve` has one
    mapping per evaluation.
    """
    last = curve[-1] if curve else {}
    train_s = record.get("train_s")
    steps = record.get("steps") or last.get("step")
    trained = last.get("examples_seen")
    noise_scales = [row["noise_scale"] for row in curve if row.get("noise_scale") is not None]
    return {
        "epochs_completed": last.get("epoch", 0),
        "steps": steps,
        **{name: last.get(name) for name in LAST_EPOCH},
        "best_val_accuracy": _best(_series(curve, "val_accuracy"), "max"),
        "best_val_loss": _best(_series(curve, "val_loss"), "min"),
        "noise_scale": median(noise_scales) if noise_scales else None,
        "examples_per_s": trained / train_s if trained and train_s else None,
        **{name: record.get(name) for name in FROM_RECORD},
        **{name: record[name] for name in RATES if record.get(name)},
        **{name: last[name] for name in SETTINGS if last.get(name) is not None},
    }


def setting_columns(settings: Mapping[str, Any]) -> dict[str, float | None]:
    """The columns of an optimizer's betas, epsilon and weight decay, and of the average's decay."""
    betas = settings.get("betas")
    first, second, *_ = [*betas, None, None] if isinstance(betas, list | tuple) else [None, None]
    found = {**settings, "beta1": first, "beta2": second}
    numbers = {name: found.get(name) for name in SETTINGS}
    return {n: float(v) if isinstance(v, Real) else None for n, v in numbers.items()}


def metric_columns(curve: Sequence[Mapping[str, Any]], config: RunConfig) -> dict[str, Any]:
    """The metric that runs are compared by, from a curve with one mapping per evaluation."""
    values = _series(curve, config.metric)
    last = values[-1] if values else None
    best = _best(values, config.metric_mode)
    return {
        "metric_name": config.metric,
        "metric": last,
        "best_metric": last if best is None else best,  # not a number, if none of them was one
    }


def metric_text(name: str, value: float | None) -> str:
    """A metric as tables and lines show it; empty if it was not measured.

    An accuracy that is not a number is that of a task without one.
    """
    if value is None or (isnan(value) and name.endswith("accuracy")):
        return ""
    has_usual_size = value == 0 or 0.01 <= abs(value) < 1e6
    return f"{value:.4f}" if has_usual_size else f"{value:.5g}"


def _series(curve: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    found = (epoch_value(row, name) for row in curve)
    return [value for value in found if value is not None]


def _best(values: Sequence[float], mode: str | None) -> float | None:
    best = min if mode == "min" else max
    return best((value for value in values if not isnan(value)), default=None)


def epoch_value(row: Mapping[str, Any], name: str) -> float | None:
    """A column of an epoch's row in a curve, or what the module logged under that name."""
    return row.get(name, row.get("metrics", {}).get(name))


@cache
def versions() -> str:
    """Versions of Python and the main libraries, as JSON."""
    names = ("torch", "torchvision", "pytorch-lightning", "hydra-core", "numpy")
    found = {name: version(name) for name in names}
    return json.dumps({"python": platform.python_version(), **found})


@cache
def git_commit() -> str | None:
    """The commit of this code, with -dirty if the checkout has changes; None if git cannot tell."""
    if shutil.which("git") is None:  # as in a container
        return None
    root = Path(__file__).parents[2]
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            cwd=root,
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:  # no memory for a process: the row matters more
        return None
    return described.stdout.strip() or None if described.returncode == 0 else None
