"""Whether the first steps of a run fail, tried in a separate process on a CPU."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sweeper.launch.fork_server import ForkServerDied, open_fork_server, start_process

_Args = tuple[Mapping[str, Any], Path, Path]


def why_failed(config: Mapping[str, Any]) -> str:
    """Why the first steps of a run, or the evaluation after them, fail; empty if they do not.

    Args:
        config: resolved, with what is known about the user's module and data.
    """
    with tempfile.TemporaryDirectory() as folder:
        answer, said = Path(folder, "answer.txt"), Path(folder, "said.txt")
        said.touch()
        try:
            process = start_process(_look, (config, answer, said), open_fork_server())
        except ForkServerDied as error:
            return str(error)
        try:
            process.join()
        finally:
            process.kill()
        if answer.exists():
            return answer.read_text()
        return (
            f"the process ended: {(said.read_text().strip() or 'it said nothing').splitlines()[-1]}"
        )


def _look(args: _Args) -> None:
    """The entry point of that process."""
    from lightning_modules.memory.first_steps import look  # imports torch

    look(*args)
