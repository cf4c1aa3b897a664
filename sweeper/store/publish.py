"""Atomic files: written next to their destination, then renamed."""

import errno
import json
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar
from uuid import uuid4

from pydantic import BeforeValidator, TypeAdapter

Kind = TypeVar("Kind")

#: Text of any kind; pydantic takes no characters that came from undecodable bytes.
Text = Annotated[
    str,
    BeforeValidator(
        lambda t: t.encode(errors="backslashreplace").decode() if isinstance(t, str) else t
    ),
]

#: Errors that a user gets who may read a folder but not write to it.
NOT_ALLOWED = (errno.EACCES, errno.EPERM, errno.EROFS)


class TakenOver(Exception):
    """Another process has taken over what this one was about to publish."""


@contextmanager
def open_partial(
    path: Path, *, within: Path | None = None, check: Callable[[], None] | None = None
) -> Generator[Path]:
    """Publish a file at the end of the block, unless the block fails; an existing file is replaced.

    Until then it is in the same folder, or in `within`, under a name that readers ignore. `check`
    is called last before it is published, and may raise `TakenOver`.
    """
    partial = (within or path.parent) / f".{path.name}.{unique_suffix()}.tmp"
    try:
        with name_path_in_errors(path):
            yield partial
            flush_to_disk(partial)
            if check:
                check()
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


_unread: dict[Path, None] = {}


def note_unread(path: Path) -> None:
    """Note that a file or a folder could not be read, and was left out."""
    _unread[path] = None


def take_unread() -> list[Path]:
    """The paths noted since this was last called, for a sentence on each.

    A missing file is none of them, and neither is an empty file, which has just been made.
    """
    taken = [*_unread]
    _unread.clear()
    return taken


def read_as(kind: type[Kind], path: Path) -> Kind | None:
    """The contents of a JSON file in this form; None if it is missing, damaged or has another."""
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    except OSError:  # such as a loop of links
        content = b"?"
    if (found := parse_as(kind, content)) is None and content:
        note_unread(path)
    return found


def parse_as(kind: type[Kind], text: str | bytes | None) -> Kind | None:
    """JSON in this form; None if it is none, or has another."""
    try:
        return _adapter(kind).validate_python(json.loads(text or b""))
    except (ValueError, RecursionError):
        return None


def read_mapping(path: Path) -> dict[str, Any]:
    """The contents of a JSON file; empty if it was truncated or is not a mapping."""
    return read_as(dict[str, Any], path) or {}


_adapter = cache(TypeAdapter)
