"""Classes of the objects in a checkpoint: which there are, and which may be read back."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
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


def find_saved_classes(path: Path | str) -> list[str]:
    """Dotted paths of the classes and functions in a checkpoint that are not read by default."""
    return sorted(get_unsafe_globals_in_checkpoint(str(path)))


def trust(classes: Iterable[str]) -> AbstractContextManager[Any]:
    """Have checkpoints read with objects of these classes; ValueError if any is not found."""
    return safe_globals([(import_callable(name, "trusted_classes"), name) for name in classes])


def drop_hyperparameters(own: Callable[..., None], checkpoint: dict[str, Any]) -> None:
    """A module's `on_save_checkpoint`; its hyperparameters, any objects, are in the config."""
    own(checkpoint)
    for name in ("hyper_parameters", "datamodule_hyper_parameters"):
        checkpoint.pop(name, None)
