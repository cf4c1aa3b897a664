"""Lines of text on standard output; quiet when the reader has left, as `| head -1` does."""

import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_WIDTH_OF_FILES = 10_000  # [cells]


def say(text: str) -> None:
    """Print a line, or exit with 1 if nobody reads it any more."""
    try:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        raise SystemExit(1) from None


def text_console(*, quiet: bool = False) -> "Console":
    """A console that prints text as it is, in lines as long as they are; styles are allowed.

    A file has room for lines of any length, unless COLUMNS is set.
    """
    from rich.console import Console  # not for the help

    console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True, quiet=quiet)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _WIDTH_OF_FILES
    return console


def text_table(*columns: str, **settings: Any) -> "Table":
    """An empty table whose columns stand on the right and never wrap."""
    from rich.table import Column, Table

    return Table(*(Column(name, justify="right", no_wrap=True) for name in columns), **settings)
