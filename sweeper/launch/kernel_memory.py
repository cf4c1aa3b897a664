"""The memory limit of the processes here, and how many the kernel killed for exceeding it.

Linux counts the processes that it killed for lack of memory, per cgroup and for the machine.
"""

import os
from collections.abc import Iterator
from pathlib import Path

_CGROUPS, _OWN, _MACHINE = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup"), Path("/proc/vmstat")
_GIB = 2**30


def oom_kills() -> int:
    """Processes killed by the kernel for lack of memory, in this cgroup, else on this machine."""
    counters = (*_files("memory.events", "memory.oom_control"), _MACHINE)
    for counter in counters:
        for line in _text(counter).splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def out_of_memory() -> str:
    """A clause that says that memory ran out, and how much there is."""
    return f"memory ran out; all processes here together may use {_memory_gib():.3g} GiB"


def _memory_gib() -> float:
    """The lowest cgroup limit, at most the installed memory [GiB]."""
    limits = (_text(file).strip() for file in _files("memory.max", "memory.limit_in_bytes"))
    installed = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([installed, *(int(limit) for limit in limits if limit.isdecimal())]) / _GIB


def _files(of_v2: str, of_v1: str) -> Iterator[Path]:
    """Paths of a file in this process's cgroup, then in its parents.

    In a container the path may be the host's, of which only the last part or nothing is visible.
    """
    for line in _text(_OWN).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        name = of_v1 if controllers else of_v2
        root = _CGROUPS / "memory" if controllers else _CGROUPS
        folder = root / path.strip("/")
        yield from (one / name for one in (folder, *folder.parents) if one.is_relative_to(root))


def _text(file: Path) -> str:
    """The text of a file; empty if it does not exist or may not be read."""
    try:
        return file.read_text()
    except OSError:
        return ""
