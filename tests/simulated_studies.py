"""Simulated tables with a known truth, for tests and benchmarks. No training happens here."""

import json
from collections.abc import Callable, Sequence
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from sweeper.store.schema import CURVES, RUNS, arrow_schema
from sweeper.store.table_files import write_table

Law = Callable[[int, float], float]
BASE_BATCH, BASE_LR, NUM_TRAIN_EXAMPLES = 256, 0.1, 1_281_167


def simulated_runs(
    batches: Sequence[int],
    warmups: Sequence[float],
    seeds: int,
    *,
    accuracy: Law,
    noise: float = 0.0,
    rng: np.random.Generator | None = None,
    rules: Sequence[str] = ("linear",),
    epochs: int = 90,
) -> pd.DataFrame:
    """A full grid of finished runs whose accuracy follows a law, with normal noise over seeds.

    Warmups are in epochs, accuracy and noise from 0 to 1; the law does not depend on the rule.
    """
    rng = rng or np.random.default_rng(0)
    rows: list[dict[str, Any]] = []
    for batch, warmup, rule, seed in product(batches, warmups, rules, range(seeds)):
        value = accuracy(batch, warmup) + noise * rng.normal()
        rows.append(_row(len(rows), batch, warmup, rule, seed) | _ended(epochs, batch, value))
    frame = pd.DataFrame(rows)
    return frame.reindex(columns=list(RUNS))


def _ended(epochs: int, batch: int, value: float) -> dict[str, Any]:
    return {
        "epochs": epochs,
        "epochs_completed": epochs,
        "steps": epochs * (NUM_TRAIN_EXAMPLES // batch),
        "val_accuracy": min(max(value, 0.0), 1.0),
        "best_val_accuracy": min(max(value, 0.0), 1.0),
        "val_loss": max(1.0 - value, 0.0),
    }


def _row(number: int, batch: int, warmup: float, rule: str, seed: int) -> dict[str, Any]:
    ratio = batch / BASE_BATCH
    lr = BASE_LR * {"linear": ratio, "sqrt": ratio**0.5, "none": 1.0}[rule]
    config = {"batch": batch, "warmup": warmup, "seed": seed, "lr_rule": {"name": rule}}
    config |= {"model": {"_target_": "Simulated"}, "base_lr": BASE_LR, "bn_span": 256}
    return {
        "run_id": f"{number:012x}",
        "attempt": 1,
        "outcome": "finished",
        "reason": "trained to the end",
        "global_batch": batch,
        "steps_per_epoch": NUM_TRAIN_EXAMPLES // batch,
        "warmup_epochs": float(warmup),
        "lr_rule": rule,
        "base_lr": BASE_LR,
        "base_batch": BASE_BATCH,
        "peak_lr": lr,
        "seed": seed,
        "bn_span": 256,
        "model": "Simulated",
        "data": "Simulated",
        "data_about": "drawn from a formula, nothing was trained",
        "num_train_examples": NUM_TRAIN_EXAMPLES,
        "lr_series_hash": f"{batch}-{warmup:g}-{rule}",
        "config_json": json.dumps(config),
    }


def with_settings(
    runs: pd.DataFrame, each: Sequence[dict[str, Any]] | None = None, **settings: Any
) -> pd.DataFrame:
    """The runs with other settings in their configs, the same for all or some for each."""
    pairs = zip(runs["config_json"], each or [{}] * len(runs), strict=True)
    texts = [json.dumps(json.loads(text) | settings | own) for text, own in pairs]
    return runs.assign(config_json=texts)


def simulated_curves(runs: pd.DataFrame, epochs: int) -> pd.DataFrame:
    """Curves that rise to each run's accuracy, `accuracy * (1 - exp(-5 epoch / epochs))`.

    The distance from the start is `log(1 + step)`.
    """
    epoch = np.tile(np.arange(1, epochs + 1), len(runs))
    repeated = runs.loc[runs.index.repeat(epochs)].reset_index(drop=True)
    rise = 1.0 - np.exp(-5.0 * epoch / epochs)
    accuracy = repeated["val_accuracy"].to_numpy() * rise
    step = epoch * repeated["steps_per_epoch"].to_numpy()
    return pd.DataFrame(
        {
            "run_id": repeated["run_id"],
            "attempt": repeated["attempt"],
            "epoch": epoch,
            "step": step,
            "examples_seen": step * repeated["global_batch"].to_numpy(),
            "lr": repeated["peak_lr"],
            "train_loss": 1.1 - accuracy,
            "train_accuracy": accuracy,
            "val_loss": 1.1 - accuracy,
            "val_accuracy": accuracy,
            "distance_from_start": np.log1p(step),
            "elapsed_s": epoch.astype(float),
        }
    )


def write_results(folder: Path, runs: pd.DataFrame, curves: pd.DataFrame | None = None) -> None:
    """Write a results folder as the ledger would: one file per run and table."""
    for name, frame in (("runs", runs), ("curves", curves)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        if frame is None:
            continue
        table = arrow_table(frame, RUNS if name == "runs" else CURVES)
        begins = frame["run_id"].ne(frame["run_id"].shift())
        starts = [*np.flatnonzero(begins).tolist(), len(frame)]
        for start, stop in pairwise(starts):
            first = frame.iloc[start]
            stem = f"{first['run_id']}-{int(first['attempt']):03d}"
            ending = f"-{first['outcome']}" if name == "runs" else ""
            path = folder / name / f"{stem}{ending}.parquet"
            write_table(table.slice(start, stop - start), path)


def write_compacted(
    folder: Path, runs: pd.DataFrame, curves: pd.DataFrame, runs_per_file: int | None = None
) -> None:
    """Write a results folder of large files, with so many runs in each; all in one if None."""
    part = np.arange(len(runs)) // (runs_per_file or max(1, len(runs)))
    parts = dict(zip(runs["run_id"], part, strict=True))
    for name, frame, columns in (("runs", runs, RUNS), ("curves", curves, CURVES)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number, rows in frame.groupby(frame["run_id"].map(parts)):
            write_table(arrow_table(rows, columns), folder / name / f"compact-{number:03d}.parquet")


def arrow_table(frame: pd.DataFrame, columns: dict[str, tuple[pa.DataType, str]]) -> pa.Table:
    """Rows as an Arrow table with the schema of the ledger's files; columns it lacks are null."""
    schema = arrow_schema(columns)
    arrays = [
        pa.array([None] * len(frame), kind)
        if name not in frame or frame[name].isna().all()
        else pa.array(frame[name], kind, from_pandas=True)
        for name, (kind, _) in columns.items()
    ]
    return pa.Table.from_arrays(arrays, schema=schema)
