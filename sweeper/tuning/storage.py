"""Where studies are kept: a journal file, or a database by URL."""

import errno
import json
import logging
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import StorageInternalError
from optuna.storages import BaseStorage, InMemoryStorage, RDBStorage
from optuna.storages.journal import BaseJournalBackend, JournalFileBackend, JournalStorage

#: In the results folder.
JOURNAL = "tuning.journal"


def open_storage(storage: str | None, results: Path, *, read_only: bool = False) -> BaseStorage:
    """The storage of a command; ValueError if it cannot be opened.

    It is a URL such as sqlite:///tuning.db, the path of a journal file, or None for the journal
    in the results folder. With `read_only` no file or folder is created and nothing is opened for
    writing, because a sweep may be using it.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    path = Path(storage) if storage else results / JOURNAL
    with name_storage("--storage" if read_only else "hydra.sweeper.storage", storage or str(path)):
        if storage and "://" in storage:
            return _copy_database(storage) if read_only else _open_database(storage)
        if read_only:
            return JournalStorage(_ReadJournal(path))
        path.parent.mkdir(parents=True, exist_ok=True)
        _end_last_line(path)
        return JournalStorage(JournalFileBackend(str(path)))


@contextmanager
def name_storage(key: str, storage: str) -> Generator[None]:
    """Name a storage in a ValueError, whatever its database, its driver or Optuna raises."""
    driver = ""
    try:
        yield
        return
    except ImportError as error:
        cause, driver = error, " For PostgreSQL: pip install 'batch-sweeper[postgresql]'."
    except Exception as error:  # noqa: BLE001  damaged content has Optuna fail in many ways
        cause = error
    why = first_cause(cause)
    if isinstance(cause, LookupError | TypeError | AssertionError | AttributeError):
        why = f"it is damaged, or not Optuna's ({type(cause).__name__}: {why})"
    what, remedy = "a journal file or a URL", "Restore it, or name another."
    if "://" in storage:
        what = "a database that can be reached"
        remedy = "Start it, correct the URL, or remove the setting to use a journal file."
    before, at, host = storage.rpartition("@")
    shown = f"{before.rpartition(':')[0]}:...@{host}" if at else storage  # without its password
    msg = f"{key} must be {what}; got {shown}: {why}.{driver} {remedy}"
    raise ValueError(msg) from cause


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


def _copy_database(url: str) -> BaseStorage:
    """A copy of a database's studies in memory; the database is closed again."""
    from sqlalchemy.engine import make_url

    address = make_url(url)
    if address.get_backend_name() == "sqlite" and not Path(address.database or "").is_file():
        raise FileNotFoundError(os.strerror(errno.ENOENT))
    opened, kept = _open_database(url, skip_table_creation=True), InMemoryStorage()
    for name in optuna.get_all_study_names(opened):
        optuna.copy_study(from_study_name=name, from_storage=opened, to_storage=kept)
    close_storage(opened)
    return kept


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


def _open_database(url: str, **options: Any) -> RDBStorage:
    # The pool logs a traceback for a lost connection, which the command reports in a sentence.
    logging.getLogger("sqlalchemy.pool").setLevel(logging.CRITICAL)
    # The last trial can be hours ago, and the connection may have been lost since.
    return RDBStorage(url, engine_kwargs={"pool_pre_ping": True}, **options)


def close_storage(storage: BaseStorage) -> None:
    """Close a database's connections; its studies cannot be used afterwards."""
    if isinstance(storage, RDBStorage):
        storage.remove_session()
        storage.engine.dispose()


def storage_errors() -> tuple[type[Exception], ...]:
    """The exceptions of a database that can no longer be reached."""
    alchemy = sys.modules.get("sqlalchemy.exc")  # not imported without a database
    return (StorageInternalError, *([alchemy.SQLAlchemyError] if alchemy else []))


def first_cause(error: BaseException) -> str:
    """The message of the database or its driver, as a single line."""
    while not getattr(error, "orig", None) and error.__cause__:
        error = error.__cause__
    text = str(getattr(error, "orig", None) or error).strip() or type(error).__name__
    return text.splitlines()[0]
