"""Arrays made once and read by all runs of a sweep on this machine."""

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sweeper.store.publish import open_partial

Array = npt.NDArray[np.uint8]
#: Limits on a sweep's arrays: bytes in all, and fraction of the file system (which is memory).
_MOST_BYTES, _MOST_SHARE = 4 * 2**30, 1 / 8


def shared_array(key: str, make: Callable[[], Array]) -> Array:
    """The array that `make` returns, from the sweep's shared folder if it is there already.

    The folder is named by SWEEPER_SHARED, which the launcher sets and clears; without it, or where
    it has no room, the array is simply made. Two processes that make it at once publish the same
    bytes. The least recently used arrays are removed to make room; processes that use them
    keep them. The key names everything that `make` depends on, in letters, digits and dashes.
    """
    folder = os.environ.get("SWEEPER_SHARED")
    if not folder:
        return make()
    path = Path(folder) / f"{key}.npy"
    with contextlib.suppress(FileNotFoundError):
        os.utime(path)
        return np.load(path, mmap_mode="c")  # torch needs writable arrays
    array = make()
    # where there is no room: sharing is only for speed
    with contextlib.suppress(OSError):
        _make_room(path.parent, array.nbytes)
        with open_partial(path) as partial, partial.open("wb") as file:
            np.save(file, array)
    return array


def _make_room(folder: Path, num_bytes: int) -> None:
    """Remove the least recently used arrays until the rest and a new array are within the limit."""
    found = [(path.stat(), path) for path in folder.glob("*.npy")]
    total = num_bytes + sum(stat.st_size for stat, _ in found)
    most = min(_MOST_BYTES, _MOST_SHARE * shutil.disk_usage(folder).total)
    for stat, path in sorted(found, key=lambda item: item[0].st_mtime_ns):
        if total <= most:
            return
        path.unlink(missing_ok=True)
        total -= stat.st_size
