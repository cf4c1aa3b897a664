"""Classes of the objects in a checkpoint: which there are, and which may be read back."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn
from torch.serialization import (
    add_safe_globals,
    get_unsafe_globals_in_checkpoint,
    safe_globals,
)

from sweeper.spec.import_path import import_callable

# NumPy scalars and arrays, which the state of its generators contains, are safe to load too, and
# what arrays of objects hold is read by the same rules.
_KINDS = "?bhilBHILefdFDSUVOMm"
_MADE_BY: Any = np.float64(0).__reduce__()[0]
_NUMPYS: Any = [np.zeros(0).__reduce__()[0], np.ndarray, np.dtype]
add_safe_globals([_MADE_BY, *_NUMPYS, *(type(np.dtype(kind)) for kind in _KINDS)])


#: Packages whose layers, losses and metrics are made of nothing but their attributes.
_PLAIN = ("lightning", "pytorch_lightning", "torch", "torchmetrics")
#: Functions that metrics hold, which do nothing but arithmetic on what they are given.
_OF_METRICS = {
    "torchmetrics.metric.jit_distributed_available",
    *(
        f"torchmetrics.utilities.data.dim_zero_{how}"
        for how in ("cat", "max", "mean", "min", "sum")
    ),
}


def find_saved_classes(path: Path | str) -> list[str]:
    """Dotted paths of the classes and functions in a checkpoint that are not read by default."""
    return [name for name in _find_unsafe(path) if not _is_plain(name)]


def trust(classes: Iterable[str], path: Path | str) -> AbstractContextManager[Any]:
    """Have a checkpoint read with objects of these classes, and with layers of torch and others.

    ValueError if any is not found.
    """
    plain = filter(_is_plain, _find_unsafe(path))
    names = {*classes, *plain}
    return safe_globals([(import_callable(name, "trusted_classes"), name) for name in names])


def _find_unsafe(path: Path | str) -> list[str]:
    return sorted(get_unsafe_globals_in_checkpoint(str(path)))


def _is_plain(name: str) -> bool:
    """Whether it is a layer, a loss or a metric of torch, torchmetrics or Lightning."""
    if name.partition(".")[0] not in _PLAIN:
        return False
    try:
        found = import_callable(name, "trusted_classes")
    except ValueError:
        return False
    is_layer = isinstance(found, type) and issubclass(found, nn.Module)
    return is_layer or name in _OF_METRICS


def drop_hyperparameters(own: Callable[..., None], checkpoint: dict[str, Any]) -> None:
    """A module's `on_save_checkpoint`; its hyperparameters, any objects, are in the config."""
    own(checkpoint)
    for name in ("hyper_parameters", "datamodule_hyper_parameters"):
        checkpoint.pop(name, None)
