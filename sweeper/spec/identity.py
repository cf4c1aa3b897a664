"""A run's identity: a hash of its scientific configuration.

Every config key stands in exactly one of two tables below, so that a new key is put on one side
deliberately. Pure: no clock, no disk, no cluster.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

#: Whatever can change the numbers beyond rounding.
SCIENTIFIC = frozenset(
    {
        "base_batch",
        "base_lr",
        "batch",
        "bn_span",
        "comm_hook",
        "data",
        "ema_decay",
        "epochs",
        "gradient_clip",
        "label_smoothing",
        "loss_ceiling",
        "lr_rule",
        "model",
        "no_decay_on_norm_and_bias",
        "noise_span",
        "optimizer",
        "perturbation",
        "precision",
        "schedule",
        "seed",
        "warmup",
        "warmup_start",
        "warmup_workers",
        "zero_init_last_norm",
    }
)

#: Where, how fast and under which name it runs.
INCIDENTAL = frozenset(
    {
        "devices",
        "accelerator",
        "keep_checkpoint",
        "logger",
        "memory_limit_gib",
        "micro_batch",
        "micro_batch_limit",
        "n_trials",
        "num_nodes",
        "reproducible",  # the same sums in another order: nothing beyond rounding
        "rerun",
        "results",
        "retry",
        "threads",
        "timeout_s",
        "twin_of",
    }
)

#: Keys inside a group that say where its files lie or how they are read, not what they hold.
INCIDENTAL_IN_GROUP = frozenset(
    {"root", "download", "num_workers", "about", "measured_in", "nccl_algo"}
)

#: A class of ours goes by its name, so that its file may move; any other by its import path.
_OURS = ("lightning_modules.", "sweeper.")


def run_id(config: Mapping[str, Any]) -> str:
    """Hash of the scientific part of a resolved config: 12 hexadecimal digits.

    Stable across processes, key order and number formats (``0.1`` and ``1e-1``, ``5`` and ``5.0``).

    Args:
        config: the resolved config, with ``bn_span`` as the number of examples in fact normalised
            together.

    Raises:
        ValueError: if a key stands in neither table.
    """
    if unknown := sorted(set(config) - SCIENTIFIC - INCIDENTAL):
        msg = (
            "every config key must be classified as scientific or incidental; "
            f"got {', '.join(unknown)}. Classify it in sweeper/spec/identity.py."
        )
        raise ValueError(msg)
    canonical = json.dumps(_canonical(scientific_part(config)), sort_keys=True, allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:12]


def scientific_part(config: Mapping[str, Any]) -> dict[str, Any]:
    """The scientific keys alone, without the incidental keys of the groups.

    A key that is null or false is as good as absent, so that a switch added later, off by default,
    does not change the identity of earlier runs.
    """
    return {
        key: _without_incidental(value) if isinstance(value, dict) else value
        for key, value in config.items()
        if key in SCIENTIFIC and value is not None and value is not False
    }


def _without_incidental(group: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in group.items() if key not in INCIDENTAL_IN_GROUP}
    if str(kept.get("_target_", "")).startswith(_OURS):
        kept["_target_"] = kept["_target_"].rpartition(".")[2]
    return kept


def _canonical(value: Any) -> Any:
    """One spelling for each number: integral floats become integers."""
    if isinstance(value, dict):
        return {str(key): _canonical(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_canonical(item) for item in value]
    if isinstance(value, float) and math.isfinite(value) and value.is_integer():
        return int(value)
    return value
