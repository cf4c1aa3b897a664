"""Work of Lightning's that has no effect and takes longer than a small module's step: spared."""

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
    """Spare this process what has no effect; after Lightning is imported.

    Where there is no GPU, torch looks for NVIDIA's library whenever it is asked for one, which each
    optimizer step does: Lightning tells it to look there, for processes with a GPU that fork.

    What Lightning keeps of a logged value goes to the value's device at each call of `log`, through
    containers of any kind; it is there from the first call on.

    Whether `training_step` takes the index of a batch is found out at each micro-batch, by reading
    its signature; it is the same one.
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
