"""Who holds an attempt: a process on a machine, alive while its heartbeat is fresh.

A heartbeat is the modification time of a file, compared with the clock of the file system it lies
on, so that machines need not agree on the time.
"""

import json
import os
import socket
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

HEARTBEAT_S = 5.0
EXPIRES_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """A process.

    Attributes:
        host: name of its machine.
        boot: of the machine, where it can be told.
        pid: process id.
        born: start time of the process in clock ticks since boot, where it can be told; guards
            against a process id used anew.
    """

    host: str
    boot: str
    pid: int
    born: str

    def is_alive(self) -> bool | None:
        """Whether the process exists; None if that cannot be told from this machine."""
        me = this_process()
        if (self.host, self.boot) != (me.host, me.boot):
            return None
        return _born(self.pid) == self.born

    def write(self, path: Path) -> None:
        """Publish by rename."""
        partial = path.with_suffix(f".{os.getpid()}.tmp")
        partial.write_text(json.dumps(asdict(self)))
        partial.replace(path)


@cache
def this_process() -> Owner:
    """The owner that this process is."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return Owner(
        host=socket.gethostname(),
        boot=boot.read_text().strip() if boot.exists() else "",
        pid=os.getpid(),
        born=_born(os.getpid()) or "",
    )


def is_held(owner_file: Path, made_in: Path) -> bool:
    """Whether an attempt has a living owner.

    Args:
        owner_file: written by the owner and touched at each heartbeat.
        made_in: the attempt's folder; its age counts until the owner has written its file.
    """
    try:
        owner = Owner(**json.loads(owner_file.read_text()))
    except (FileNotFoundError, ValueError, TypeError):
        return _age_s(made_in) < EXPIRES_S
    alive = owner.is_alive()
    return alive if alive is not None else _age_s(owner_file) < EXPIRES_S


def _born(pid: int) -> str | None:
    """Start time of a process, from field 22 of its stat; None if there is no such process."""
    if not Path("/proc/self/stat").exists():
        return _exists(pid)
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    state, *fields = stat.rpartition(")")[2].split()
    return None if state == "Z" else fields[18]


def _exists(pid: int) -> str | None:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return ""


def _age_s(path: Path) -> float:
    """Seconds since the last heartbeat, by the clock of the file system."""
    probe = path.parent / f".now-{os.getpid()}"
    try:
        probe.touch()
        return probe.stat().st_mtime - path.stat().st_mtime
    except FileNotFoundError:
        return 0.0  # just being made, or just being released
    finally:
        probe.unlink(missing_ok=True)
