"""Skips work of Lightning's that has no effect but takes longer than a small module's step."""

import os
from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any

import torch
from pytorch_lightning.loops import training_epoch_loop
from pytorch_lightning.trainer.connectors.logger_connector import result

_BY_NVML = "PYTORCH_NVML_BASED_CUDA_CHECK"
_TAKES_INDEX = "is_param_in_hook_signature"  # private: Lightning training_epoch_loop


def spare_idle_work() -> None:
    """Skip work without effect in this process; call it after Lightning is imported.

    Without a GPU, torch looks for NVIDIA's library whenever it is asked for a GPU, as by each
    optimizer step: Lightning makes it look there, for the sake of GPU processes that fork.

    At each call of `log`, Lightning moves what it keeps of a value to the value's device, by a
    search through containers; it is there from the first call on.

    At each micro-batch, Lightning reads the signature of `training_step` to see whether it takes
    the batch's index; that does not change.
    """
    if not torch.cuda.is_available():
        os.environ.pop(_BY_NVML, None)
    kept: Any = getattr(result, "_ResultMetric", None)  # private: Lightning result._ResultMetric
    if kept is not None and not hasattr(kept.to, "__wrapped__"):
        kept.to = _unless_there(kept.to)
    takes: Any = getattr(training_epoch_loop, _TAKES_INDEX, None)
    if takes is not None and not hasattr(takes, "cache_info"):
        setattr(training_epoch_loop, _TAKES_INDEX, lru_cache(maxsize=1)(takes))


def _unless_there(move: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(move)
    def to(kept: Any, *args: Any, **settings: Any) -> Any:
        value = getattr(kept, "value", None)  # a tensor or a metric; the rest is where it is
        if value is not None and args == (value.device,) and not settings:
            return kept
        return move(kept, *args, **settings)

    return to
