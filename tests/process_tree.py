"""The processes of a command, found through /proc."""

from pathlib import Path


def descendants(pid: int) -> list[int]:
    """Processes below this one, deepest last."""
    try:
        tasks = [task.read_text() for task in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:
        return []
    children = [int(child) for found in tasks for child in found.split()]
    return [one for child in children for one in (child, *descendants(child))]
