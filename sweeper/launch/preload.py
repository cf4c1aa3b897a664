"""Imported by the fork server: the user's modules, once for all runs.

One that cannot be imported must not end the fork server: each run that needs it says why.
"""

import contextlib
import importlib
import os

from sweeper.spec.worker_args import PRELOADED

for _name in filter(None, os.environ.get(PRELOADED, "").split(",")):
    with contextlib.suppress(Exception, SystemExit):
        importlib.import_module(_name)
