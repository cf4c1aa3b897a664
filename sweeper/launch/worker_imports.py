"""Imported by the fork server: torch and all that workers need, including the user's modules.

A failing import must not end the fork server; each run that needs the module reports the error.
"""

import contextlib
import importlib
import os

from sweeper.launch.fork_server import isolate_imports
from sweeper.spec.worker_args import PRELOADED

#: The first error of importing the worker: importing again in this process would give another.
error: Exception | None = None

with isolate_imports():
    try:
        importlib.import_module("lightning_modules.worker")
    except Exception as first:  # noqa: BLE001  whatever a library does as it is imported
        error = first
    for _name in filter(None, os.environ.get(PRELOADED, "").split(",")):
        with contextlib.suppress(Exception, SystemExit):
            importlib.import_module(_name)
