"""A folder in memory for arrays that the runs of a sweep share on this machine."""

import os
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from sweeper.store.lease import process_start


@contextmanager
def shared_folder() -> Generator[Path]:
    """A folder in memory for arrays that the runs share; those of dead launchers are removed."""
    root = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path(tempfile.gettempdir())
    for left in root.glob("sweeper-*-shared"):
        if process_start(int(left.name.split("-")[1])) is None:
            shutil.rmtree(left, ignore_errors=True)
    path = root / f"sweeper-{os.getpid()}-shared"
    path.mkdir(exist_ok=True)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
