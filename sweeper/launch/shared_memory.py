"""A folder in memory for arrays that the runs of a sweep share: private, gone with the sweep."""

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Generator
from pathlib import Path

from sweeper.store.lease import process_start

_SHM = Path("/dev/shm")
_NAME = re.compile(r"sweeper-(\d{1,9})-\w+-shared")


@contextlib.contextmanager
def shared_folder() -> Generator[Path]:
    """A new folder that only this user can enter; those of this user's dead launchers are removed.

    Everybody may write where it lies: what has such a name and is somebody else's stays unused.
    """
    root = _SHM if os.access(_SHM, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())
    for left in root.glob("sweeper-*-shared"):
        if (named := _NAME.fullmatch(left.name)) and _is_left(left, int(named[1])):
            shutil.rmtree(left, ignore_errors=True)
    # Made with mode 700, under a name that nobody can guess and take before.
    path = Path(tempfile.mkdtemp(prefix=f"sweeper-{os.getpid()}-", suffix="-shared", dir=root))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _is_left(folder: Path, pid: int) -> bool:
    """Whether it is this user's, and its launcher has died."""
    try:
        owner = folder.lstat().st_uid
    except OSError:  # its launcher has just removed it
        return False
    return owner == os.geteuid() and process_start(pid) is None
