"""The memory limit of the processes here, and how many the kernel killed for exceeding it.

Linux counts the processes that it killed for lack of memory, per cgroup and for the machine.
"""

import os
from collections.abc import Iterator
from pathlib import Path

_CGROUPS, _OWN, _MACHINE = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup"), Path("/proc/vmstat")


def oom_kills() -> int:
    """Processes killed by the kernel for lack of memory, in this cgroup, else on this machine."""
    for counter in (*_list_files("memory.events", "memory.oom_control"), _MACHINE):
        for line in _read(counter).splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def out_of_memory() -> str:
    """A clause that says that memory ran out, and how much there is: the lowest cgroup limit."""
    limits = (_read(file).strip() for file in _list_files("memory.max", "memory.limit_in_bytes"))
    installed = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    gib = min([installed, *(int(limit) for limit in limits if limit.isdecimal())]) / 2**30
    return f"memory ran out; all processes here together may use {gib:.3g} GiB"


def _list_files(name_v2: str, name_v1: str) -> Iterator[Path]:
    """Paths of a file in this process's cgroup, then in its parents.

    In a container the path may be the host's, of which only the last part or nothing is visible.
    """
    for line in _read(_OWN).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        name = name_v1 if controllers else name_v2
        root = _CGROUPS / "memory" if controllers else _CGROUPS
        own = root / path.strip("/")
        yield from (up / name for up in (own, *own.parents) if up.is_relative_to(root))


def _read(file: Path) -> str:
    """The text of a file; empty if it does not exist or may not be read."""
    try:
        return file.read_text()
    except OSError:
        return ""
