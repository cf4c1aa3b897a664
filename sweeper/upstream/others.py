"""Optuna and multiprocessing: what they have no public call for."""

import os
import tempfile
from multiprocessing import forkserver
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import optuna

#: The longest path of a temporary folder that can hold multiprocessing's sockets: the names of
#: folder and socket take 32 of the 103 bytes that macOS allows, and of the 107 of Linux [bytes].
_LONGEST_FOLDER = 71


def ensure_fork_server() -> None:
    """Start the fork server if it is not running, before the first process that it starts.

    `multiprocessing.forkserver.ensure_running` is undocumented; `Process.start` calls it. It
    chooses the folder of the sockets, also for processes that are made after it.
    """
    before = tempfile.tempdir
    if len(os.fsencode(tempfile.gettempdir())) > _LONGEST_FOLDER:
        tempfile.tempdir = "/tmp"
    try:
        forkserver.ensure_running()
    finally:
        tempfile.tempdir = before


def resume_trial(study: "optuna.Study", trial_id: int) -> "optuna.Trial":
    """A trial that an earlier command began, under its number.

    `optuna.Trial` is documented as made by Optuna alone; `Study.ask` makes it so.
    """
    import optuna

    return optuna.Trial(study, trial_id)
