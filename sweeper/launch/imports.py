"""Imports without garbage collection: of what torch brings, nothing is garbage."""

import atexit
import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def importing() -> Generator[None]:
    """Import in four fifths of the time; what is there then is never looked through again."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        atexit.register(gc.unfreeze)  # so that modules can be taken apart at the end
        gc.enable()
