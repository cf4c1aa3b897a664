"""Where studies are kept: a journal file in the results folder."""

import json
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import BaseStorage
from optuna.storages.journal import BaseJournalBackend, JournalFileBackend, JournalStorage

#: In the results folder.
JOURNAL = "tuning.journal"


def open_storage(results: Path, *, read_only: bool = False) -> BaseStorage:
    """The journal of a results folder; ValueError if it cannot be read.

    With `read_only` no file or folder is created and nothing is opened for writing, because a sweep
    may be using it.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    path = results / JOURNAL
    with name_journal(results):
        if read_only:
            return JournalStorage(_ReadJournal(path))
        path.parent.mkdir(parents=True, exist_ok=True)
        _end_last_line(path)
        return JournalStorage(JournalFileBackend(str(path)))


@contextmanager
def name_journal(results: Path) -> Generator[None]:
    """Name the journal of a results folder in a ValueError, whatever Optuna raises."""
    try:
        yield
    except Exception as error:  # damaged content has Optuna fail in many ways
        why = str(error) or type(error).__name__
        msg = f"{results / JOURNAL} must be a journal of Optuna's; got {why}. Restore it."
        raise ValueError(msg) from error


class _ReadJournal(BaseJournalBackend):
    """The complete lines of a journal; an incomplete last line is still being written."""

    def __init__(self, path: Path) -> None:
        lines = path.read_bytes().splitlines(keepends=True)
        self._logs = [json.loads(line) for line in lines if line.endswith(b"\n")]

    def read_logs(self, log_number_from: int) -> list[dict[str, Any]]:
        return self._logs[log_number_from:]

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        msg = f"a journal that is read must not be written; got {len(logs)} lines."
        raise AssertionError(msg)


def _end_last_line(path: Path) -> None:
    """Truncate an incomplete last line that a killed writer left; no reader has accepted it."""
    if not path.exists():
        return
    with path.open("rb+") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - (1 << 20)))
        tail = file.read()
        if tail and not tail.endswith(b"\n"):
            file.truncate(size - len(tail) + tail.rfind(b"\n") + 1)
