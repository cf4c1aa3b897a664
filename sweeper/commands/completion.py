"""Tab completion: our subcommands before Hydra's keys, groups and options."""

import contextlib
import io
import os
import sys
from collections.abc import Sequence

from sweeper.commands.sweep import run_command_line

_TAKE_OVERRIDES = ("plan", "equivalence")


def complete(line: str, commands: Sequence[str]) -> None:
    """Print the possible completions of the last word of a line."""
    _, *words = line.split(" ")
    last = words[-1] if words else ""
    if len(words) < 2:
        sys.stdout.writelines(f"{name}\n" for name in commands if name.startswith(last))
    if words and words[0] in commands and words[0] not in _TAKE_OVERRIDES:
        return  # the shell then completes file names
    if last.startswith("-"):
        return
    overrides = [word for word in words[:-1] if "=" in word or word.startswith("~")]
    # Hydra knows neither our subcommands nor their flags; without -m it refuses lists of values.
    os.environ["COMP_LINE"] = " ".join(["sweeper", "-m", *overrides, last])
    with contextlib.redirect_stderr(io.StringIO()), contextlib.suppress(SystemExit):
        run_command_line()
