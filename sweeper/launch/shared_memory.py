"""A folder in memory for arrays that the runs of a sweep share: private, gone with the sweep."""

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
    """A new folder that only this user can enter; those of this user's dead launchers are removed.

    A launcher locks its folder, which ends with it, also where containers that share this memory
    have process ids of their own. Everybody may write where it lies: what has such a name and is
    somebody else's stays unused.
    """
    root = _SHM if os.access(_SHM, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())
    for left in root.glob("sweeper-*-shared"):
        with _locked(left, fcntl.LOCK_EX | fcntl.LOCK_NB) as is_left:
            if is_left:
                shutil.rmtree(left, ignore_errors=True)
    while True:
        # Made with mode 700, under a name that nobody can guess and take before.
        path = Path(tempfile.mkdtemp(prefix="sweeper-", suffix="-shared", dir=root))
        with _locked(path, fcntl.LOCK_EX):
            if not path.exists():  # removed by another before it was locked
                continue
            try:
                yield path
            finally:
                shutil.rmtree(path, ignore_errors=True)
            return


@contextlib.contextmanager
def _locked(folder: Path, operation: int) -> Generator[bool]:
    """Whether it is a folder of this user's that could be locked, for as long as this lasts."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:  # none, somebody else's, or its launcher has just removed it
        yield False
        return
    try:
        yield _lock(descriptor, operation) and os.fstat(descriptor).st_uid == os.geteuid()
    finally:
        os.close(descriptor)


def _lock(descriptor: int, operation: int) -> bool:
    """Lock a folder; whether that could be done, as on some network file systems it cannot."""
    try:
        fcntl.flock(descriptor, operation)
    except OSError:
        return False
    return True
