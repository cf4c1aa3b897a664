"""Imported by the fork server: torch and all that workers need, the user's modules included.

One that cannot be imported must not end the fork server: each run that needs it says why.
"""

import contextlib
import importlib
import os

from sweeper.launch.imports import importing
from sweeper.spec.worker_args import PRELOADED

#: Of torch or the worker: a second import in this process would say something else.
error: Exception | None = None

with importing():
    try:
        importlib.import_module("lightning_modules.worker")
    except Exception as first:  # noqa: BLE001  whatever a library does as it is imported
        error = first
    for _name in filter(None, os.environ.get(PRELOADED, "").split(",")):
        with contextlib.suppress(Exception, SystemExit):
            importlib.import_module(_name)
