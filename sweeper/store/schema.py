"""The columns of the tables: name, type and meaning. Every file has every column.

Exceptions are columns that were added later: they read as null from files of earlier versions.
"""

from collections.abc import Mapping

import pyarrow as pa

from sweeper.spec.noise import NOISE_COLUMNS

#: Written into each file's metadata. Increase it when a column is removed or changes its meaning;
#: an added column is listed in LATER instead.
SCHEMA_VERSION = "1"

_TEXT, _COUNT, _REAL, _SWITCH = pa.string(), pa.int64(), pa.float64(), pa.bool_()

#: Settings that a rule may scale with the batch.
SETTINGS: dict[str, tuple[pa.DataType, str]] = {
    "beta1": (_REAL, "of the optimizer, as used at this batch; null for none"),
    "beta2": (_REAL, "of the optimizer, as used at this batch; null for none"),
    "eps": (_REAL, "of the optimizer, as used at this batch; null for none"),
    "weight_decay": (_REAL, "of the optimizer, as used at this batch; null for none"),
    "ema_decay": (_REAL, "of the average of the weights, per step; null for none"),
}

#: Columns of the curves that `update_angle` fills in: the mean and the largest.
ANGLE_COLUMNS = ("update_angle", "largest_update_angle")

RUNS: dict[str, tuple[pa.DataType, str]] = {
    "run_id": (_TEXT, "hash of the scientific configuration"),
    "outcome": (_TEXT, "finished, diverged, out_of_memory, timed_out, preempted or failed"),
    "reason": (_TEXT, "explanation of the outcome"),
    "global_batch": (_COUNT, "examples per optimizer step, over all ranks, as requested"),
    "micro_batch": (_COUNT, "examples per rank per forward/backward"),
    "world_size": (_COUNT, "data-parallel ranks"),
    "strategy": (_TEXT, "ddp; fsdp: weights, gradients and optimizer state in shards"),
    "compiled": (_SWITCH, "whether the model was compiled"),
    "checkpoint_activations": (_SWITCH, "whether blocks recomputed their activations"),
    "accumulation_steps": (_COUNT, "micro-batches per rank per optimizer step"),
    "steps_per_epoch": (_COUNT, "whole global batches in an epoch"),
    "realised_batch_min": (
        _COUNT,
        "smallest number of examples in an optimizer step, measured; of a branch, its parent's too",
    ),
    "realised_batch_max": (_COUNT, "largest number of examples in one of these steps, measured"),
    "step_tokens_min": (_COUNT, "the same of tokens, if batches are in tokens; null for others"),
    "step_tokens_max": (_COUNT, "the same of tokens, if batches are in tokens; null for others"),
    "warmup_epochs": (_REAL, "length of the warmup"),
    "lr_rule": (_TEXT, "how the peak rate scales with the batch"),
    "base_lr": (_REAL, "learning rate at base_batch"),
    "base_batch": (_COUNT, "the reference batch"),
    "peak_lr": (_REAL, "learning rate at the end of warmup"),
    **SETTINGS,
    "optimizer": (_TEXT, "class of the optimizer"),
    "schedule": (_TEXT, "how the rate decays"),
    "model": (_TEXT, "class of the model"),
    "data": (_TEXT, "class of the data set"),
    "data_about": (_TEXT, "description of the data set"),
    "twin_of": (_TEXT, "the study that this run is a small twin of; null for none"),
    "tags": (_TEXT, "the user's own label, from the command that trained it; null for none"),
    "data_order": (
        _TEXT,
        "global: the same on every layout; counted: the own order of iterable-only data",
    ),
    "num_train_examples": (_COUNT, "examples in an epoch"),
    "tokens_per_example": (
        _COUNT,
        "of a text, whose examples are sequences; 1 if batches and micro-batches are in tokens of "
        "examples of different lengths; null for other data",
    ),
    "dropped_examples": (
        _COUNT,
        "of these, left out of the first epoch, as they do not fill a batch",
    ),
    "num_parameters": (_COUNT, "trained parameters of the model"),
    "bn_span": (_COUNT, "examples normalised together by BatchNorm"),
    "precision": (_TEXT, "of the arithmetic"),
    "branch": (_TEXT, "the run and its epochs that this run began from; null for none"),
    "trunk": (_TEXT, "the run and the steps of it that this run began after; null for none"),
    "seed": (_COUNT, "of initial weights, order and augmentation"),
    "epochs": (_COUNT, "length of the training; of a run in steps or examples, the epochs begun"),
    "epochs_completed": (_COUNT, "epochs trained"),
    "steps": (_COUNT, "optimizer steps taken; 0 of a run that failed before its first"),
    "val_accuracy": (_REAL, "on the validation set at the last evaluation, 0 to 1"),
    "val_loss": (_REAL, "on the validation set at the last evaluation, nats per example"),
    "best_val_accuracy": (_REAL, "highest over the evaluations, 0 to 1"),
    "best_val_loss": (_REAL, "lowest over the evaluations, nats per example"),
    "train_loss": (_REAL, "mean between the last two evaluations, nats per example"),
    "train_accuracy": (_REAL, "mean between the last two evaluations, 0 to 1"),
    "metric_name": (_TEXT, "what runs are compared by, as the module logs it"),
    "metric": (_REAL, "its value at the last evaluation"),
    "best_metric": (_REAL, "its best value over the evaluations; nan if none was a number"),
    "noise_scale": (_REAL, "median over the curve, in examples; null if not measured"),
    "predicted_s": (_REAL, "wall_s of a run in one attempt, as predicted; null if not known"),
    "predicted_least_s": (_REAL, "9 of 10 runs are predicted to take at least this long"),
    "predicted_most_s": (_REAL, "9 of 10 runs are predicted to take at most this long"),
    "wall_s": (_REAL, "seconds of this attempt, in the worker"),
    "start_s": (_REAL, "of these, seconds until training began"),
    "train_s": (_REAL, "seconds of training, without validation, over all attempts"),
    "examples_per_s": (_REAL, "examples trained on per second of training"),
    "predicted_memory_gib": (_REAL, "peak_memory_gib, as predicted; null if not known"),
    "peak_memory_gib": (_REAL, "of the tensors on a GPU, of the process on a CPU"),
    "lr_series_hash": (_TEXT, "chain hash of the learning rate of every step, as realised"),
    "attempt": (_COUNT, "1-based; earlier attempts are in superseded/"),
    "started_at": (pa.timestamp("us", tz="UTC"), "start of this attempt"),
    "host": (_TEXT, "name of the machine"),
    "device_kind": (_TEXT, "cpu, or the name of the GPU"),
    "guarantees": (
        _TEXT,
        "those confirmed for the user's module or model, with what was compared; null for ours",
    ),
    "code_hash": (
        _TEXT,
        "hash of the user's own sources, listed in results/code/<code_hash>.json; null for none",
    ),
    "resumed_code": (
        _TEXT,
        "hashes of other sources that it was trained with before, comma-separated (code=keep); "
        "null for none",
    ),
    "git_commit": (
        _TEXT,
        "of the code, with -dirty if it had local changes; null outside a checkout",
    ),
    "versions": (_TEXT, "of Python and the main libraries, as JSON"),
    "log_path": (_TEXT, "the attempt's log, relative to the results folder"),
    "config_json": (_TEXT, "the full resolved config"),
}

CURVES: dict[str, tuple[pa.DataType, str]] = {
    "run_id": (_TEXT, "as in runs"),
    "attempt": (_COUNT, "as in runs"),
    "epoch": (_COUNT, "completed epochs; 0 within the first"),
    "step": (_COUNT, "optimizer steps taken by then: the key within a run"),
    "realised_batch": (_COUNT, "examples of the optimizer step, over all ranks"),
    "examples_seen": (_COUNT, "examples of all steps by then"),
    "lr": (_REAL, "learning rate of the last step, as realised"),
    **SETTINGS,
    "train_loss": (_REAL, "mean since the evaluation before, nats per example"),
    "train_accuracy": (_REAL, "mean since the evaluation before, 0 to 1"),
    "val_loss": (_REAL, "nats per example"),
    "val_accuracy": (
        _REAL,
        "0 to 1; nan for tasks without accuracy",
    ),
    "distance_from_start": (_REAL, "norm of the weights minus the initial ones"),
    "noise_scale": (
        _REAL,
        "of the gradient over the epoch so far, in examples: variance of one example's gradient "
        "over the squared norm of the mean one; null if not measured, infinite if only noise",
    ),
    "gradient_signal": (_REAL, "its denominator; null if not measured, as those that follow"),
    "gradient_variance": (_REAL, "its numerator, of one example"),
    "gradient_cosine": (_REAL, "mean over pairs of spans of the cosine of their gradients"),
    "gradient_diversity": (_REAL, "of the spans (Yin 2018): 1 if orthogonal, 1 / spans if equal"),
    "norm_test": (_REAL, "variance of the batch's gradient over its squared norm (Byrd 2012)"),
    "update_angle": (
        _REAL,
        "angle by which a step turns a weight matrix, in radians: mean over the matrices and over "
        "the steps since the row before; null without update_angle=true, or without matrices",
    ),
    "largest_update_angle": (_REAL, "the same, of the step at which it was largest"),
    "elapsed_s": (_REAL, "seconds of training and validation by then"),
}

METRICS: dict[str, tuple[pa.DataType, str]] = {
    "run_id": (_TEXT, "as in runs"),
    "attempt": (_COUNT, "as in runs"),
    "epoch": (_COUNT, "completed epochs; 0 within the first"),
    "step": (_COUNT, "optimizer steps taken by then"),
    "name": (_TEXT, "as the module logged it"),
    "value": (_REAL, "at the evaluation"),
}

#: Columns added later, which files of earlier versions lack; one that lacks others is refused.
LATER = frozenset(
    {"tokens_per_example", "step_tokens_min", "step_tokens_max", "branch", "trunk"}
    | {"strategy", "compiled", "checkpoint_activations"}
    | {*SETTINGS, *NOISE_COLUMNS[1:], *ANGLE_COLUMNS}
)

#: The tables by the folder that holds them; a run whose module logs nothing has no metrics.
TABLES = {"runs": RUNS, "curves": CURVES, "metrics": METRICS}


def arrow_schema(columns: dict[str, tuple[pa.DataType, str]]) -> pa.Schema:
    """The schema of a table's files."""
    fields = [pa.field(name, kind) for name, (kind, _) in columns.items()]
    return pa.schema(fields, metadata={"schema_version": SCHEMA_VERSION})


def check_version(metadata: Mapping[bytes, bytes] | None) -> None:
    """ValueError for a file of another schema version, whose columns may mean something else."""
    stated = (metadata or {}).get(b"schema_version")
    if stated is None:
        msg = (
            "not a table of this program: its metadata has no schema_version. Programs that "
            "rewrite a table drop it; read such a file with pandas."
        )
        raise ValueError(msg)
    if (version := stated.decode(errors="replace")) != SCHEMA_VERSION:
        msg = (
            f"schema_version must be {SCHEMA_VERSION}; got {version}. "
            "Read the file with the version of sweeper that wrote it."
        )
        raise ValueError(msg)
