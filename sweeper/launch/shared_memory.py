"""A folder in memory for arrays that the runs of a sweep share: private, removed after it."""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Generator
from pathlib import Path

_SHM = Path("/dev/shm")


@contextlib.contextmanager
def shared_folder() -> Generator[Path]:
    """A new folder that only this user can enter; removes those of this user's dead launchers.

    A launcher locks its folder. The lock ends with the process, which also works between containers
    that share this memory but not their process ids. Any user may write to the parent folder, so
    folders of this name that belong to another user are not touched.
    """
    root = _SHM if os.access(_SHM, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())
    for left in root.glob("sweeper-*-shared"):
        with _lock_folder(left, fcntl.LOCK_EX | fcntl.LOCK_NB) as is_left:
            if is_left:
                shutil.rmtree(left, ignore_errors=True)
    while True:
        # mkdtemp uses mode 700 and a name that nobody can guess and take first.
        path = Path(tempfile.mkdtemp(prefix="sweeper-", suffix="-shared", dir=root))
        with _lock_folder(path, fcntl.LOCK_EX):
            if not path.exists():  # another launcher removed it before it was locked
                continue
            try:
                yield path
            finally:
                shutil.rmtree(path, ignore_errors=True)
            return


@contextlib.contextmanager
def _lock_folder(folder: Path, operation: int) -> Generator[bool]:
    """Lock a folder during the block; gives whether that worked and this user owns it."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:  # missing, not ours, or just removed by its launcher
        yield False
        return
    try:
        fcntl.flock(descriptor, operation)
        is_ours = os.fstat(descriptor).st_uid == os.geteuid()
    except OSError:  # locked by its launcher, or on a file system without locks
        is_ours = False
    try:
        yield is_ours
    finally:
        os.close(descriptor)
