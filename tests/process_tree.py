"""The processes of a command, found through /proc."""

from pathlib import Path


def descendants(pid: int) -> list[int]:
    """Processes below this one, deepest last."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == pid:
            child = int(stat.parent.name)
            found += [child, *descendants(child)]
    return found
