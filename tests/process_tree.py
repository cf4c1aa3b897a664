"""Commands in processes of their own, and the processes of a command, found through /proc."""

import subprocess
import sys
from pathlib import Path


def start(*words: str, within: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    """Start `sweeper WORDS`, within another program; what it prints is one stream."""
    command = [*within, sys.executable, "-m", "sweeper", *words]
    return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def read_until(command: subprocess.Popen[str], text: str) -> str:
    """What a command prints, up to the line with this text, or to its end."""
    said = ""
    while text not in said and (line := command.stdout.readline()):
        said += line
    return said


def descendants(pid: int) -> list[int]:
    """Processes below this one, deepest last."""
    try:
        tasks = [task.read_text() for task in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:
        return []
    children = [int(child) for found in tasks for child in found.split()]
    return [one for child in children for one in (child, *descendants(child))]
