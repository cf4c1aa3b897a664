"""Arrays made once and read by all runs of a sweep on this machine."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sweeper.store.publish import publishing

Array = npt.NDArray[np.uint8]


def shared_array(key: str, make: Callable[[], Array]) -> Array:
    """The array that `make` returns, from the sweep's shared folder if it is there already.

    The folder is named by SWEEPER_SHARED, which the launcher sets and clears; without it, or where
    it has no room, the array is simply made. Two makers at once publish the same bytes.
    The key names everything that `make` depends on, in letters, digits and dashes.
    """
    folder = os.environ.get("SWEEPER_SHARED")
    if not folder:
        return make()
    path = Path(folder) / f"{key}.npy"
    if path.exists():
        return np.load(path, mmap_mode="c")  # torch wants arrays that it may write
    array = make()
    # where there is no room: sharing is only for speed
    with contextlib.suppress(OSError), publishing(path) as partial, partial.open("wb") as file:
        np.save(file, array)
    return array
