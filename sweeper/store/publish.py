"""Atomic files: written next to their destination, then renamed."""

import errno
import json
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

#: Errors that a user gets who may read a folder but not write to it.
NOT_ALLOWED = (errno.EACCES, errno.EPERM, errno.EROFS)


@contextmanager
def open_partial(path: Path) -> Generator[Path]:
    """Publish a file at the end of the block, unless the block fails; an existing file is replaced.

    Until then it is in the same folder, under a name that readers ignore.
    """
    partial = path.with_name(f".{path.name}.{unique_suffix()}.tmp")
    try:
        with name_path_in_errors(path):
            yield partial
            flush_to_disk(partial)
            partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def name_path_in_errors(path: Path) -> Generator[None]:
    """Add the path to errors of writing a file: those of a full disk lack it."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, os.strerror(error.errno), str(path)) from error


@contextmanager
def skip_if_forbidden() -> Generator[None]:
    """Skip optional writes that are not allowed: the results folder may be another user's."""
    try:
        yield
    except OSError as error:
        if error.errno not in NOT_ALLOWED:
            raise


def unique_suffix() -> str:
    """A suffix that no other process chooses; a process id may be in use on another machine."""
    return uuid4().hex[:12]


def flush_to_disk(path: Path) -> None:
    """Make a file's content survive a power cut; do this before it replaces another file."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def publish_text(path: Path, text: str) -> None:
    """Publish a text."""
    with open_partial(path) as partial:
        partial.write_text(text)


def publish_json(path: Path, content: Any) -> None:
    """Publish plain values."""
    publish_text(path, json.dumps(content, indent=1))


def read_mapping(path: Path) -> dict[str, Any]:
    """The contents of a JSON file; empty if it was truncated or is not a mapping."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
