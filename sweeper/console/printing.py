"""Lines of text on standard output; quiet if the reader closes the pipe, as `| head -1` does."""

import argparse
import io
import math
import os
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from sweeper.spec.outcomes import BAD_INPUT

if TYPE_CHECKING:
    from rich.console import Console

_WIDTH_OF_FILES = 10_000  # [cells]
_WIDTH_OF_TERMINALS = 80  # whose width is unknown [cells]


def open_closed_streams() -> None:
    """Open closed standard streams (`>&-`) on /dev/null, so that no other file gets their numbers.

    Characters that the output's encoding lacks are written as escape sequences.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            stream = Path(os.devnull).open(mode)  # noqa: SIM115  stays open
            if stream.fileno() != number:
                os.dup2(stream.fileno(), number)
            os.set_inheritable(number, True)  # noqa: FBT003  by the fork server
            setattr(sys, name, stream)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def whole_number(lowest: int, highest: int) -> Callable[[str], int]:
    """A parser of command-line arguments that are whole numbers in a range."""

    def read(text: str) -> int:
        if text.isdecimal() and lowest <= int(text[:20]) <= highest:
            return int(text)
        msg = f"it must be a whole number from {lowest} to {highest}; got {text!r}"
        raise argparse.ArgumentTypeError(msg)

    return read


def positive_number(text: str) -> float:
    """A command-line argument that is a number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        msg = f"it must be a number above 0; got {text!r}"
        raise argparse.ArgumentTypeError(msg)
    return number


def describe_os_error(error: OSError) -> str:
    """A sentence on a file that cannot be used, or on what else the system refused."""
    why = error.strerror or error
    if not error.filename:
        return f"the system must allow what the command does; got: {why}. Correct the cause."
    return (
        f"{error.filename} must be readable and writable; got: {why}. Correct it, or name another "
        "if it is an argument."
    )


def say(text: str) -> None:
    """Print a line, or exit: with 1 if the pipe was closed, with 2 if it cannot be written."""
    try:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        raise SystemExit(1) from None
    except OSError as error:  # a full disk
        note(f"Standard output must be writable; got: {error.strerror}. Redirect it elsewhere.")
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(BAD_INPUT) from None


def note(text: str) -> None:
    """Print a remark on standard error, since standard output is for results."""
    with suppress(OSError):
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


def text_console(*, quiet: bool = False) -> "Console":
    """A console that prints text unchanged and does not wrap lines; styles are allowed.

    Files get lines of any length, unless COLUMNS is set to more than 0.
    """
    from rich.console import Console  # not for the help

    console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True, quiet=quiet)
    if console.width < 1 or (not console.is_terminal and "COLUMNS" not in os.environ):
        console.width = _WIDTH_OF_TERMINALS if console.is_terminal else _WIDTH_OF_FILES
    return console


class HintingParser(argparse.ArgumentParser):
    """Says what a misspelt option or choice may have meant."""

    def error(self, message: str) -> NoReturn:
        """Refuse the command line; exit with 2."""
        from sweeper.spec.sentences import did_you_mean  # pydantic, which a help does not wait for

        option = re.search(r"unrecognized arguments: (--[\w-]+)", message)
        choice = re.search(r"invalid choice: '(.*)' \(choose from (.*)\)", message)
        if option:
            message += f". {did_you_mean(option[1], re.findall(r'--[a-z-]+', self.format_usage()))}"
        elif choice:
            message += f". {did_you_mean(choice[1], re.findall(r'[a-z0-9-]+', choice[2]))}"
        super().error(message.removesuffix(". "))
