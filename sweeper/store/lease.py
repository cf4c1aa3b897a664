"""Who holds an attempt: a process on a machine, alive while its heartbeat is fresh.

A heartbeat is the modification time of a file, compared with the clock of the file system it lies
on, so that machines need not agree on the time. It comes from a thread of its own: a launcher may
be kept waiting, as by a first import of torch over a network, for longer than a lease lasts.
"""

import contextlib
import json
import os
import socket
import threading
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
        boot: of the machine, and the namespace of its process ids (containers of one machine may
            share its name, but not its processes), where they can be told.
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
    boot, namespace = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")
    is_linux = boot.exists() and namespace.is_symlink()
    return Owner(
        host=socket.gethostname(),
        boot=f"{boot.read_text().strip()} {namespace.readlink()}" if is_linux else "",
        pid=os.getpid(),
        born=_born(os.getpid()) or "",
    )


def hold(owner_file: Path) -> None:
    """Make this process the owner, whose heart beats until it lets go."""
    this_process().write(owner_file)
    _held.add(owner_file)
    _start_heart(os.getpid())


def let_go(owner_file: Path) -> None:
    """Be the owner no more."""
    _held.discard(owner_file)
    owner_file.unlink(missing_ok=True)


_held: set[Path] = set()


@cache
def _start_heart(pid: int) -> None:
    """Once in a process: threads do not outlive a fork."""
    threading.Thread(target=_beat, name=f"heartbeat-{pid}", daemon=True).start()


def _beat() -> None:
    pause = threading.Event()
    while not pause.wait(HEARTBEAT_S):
        for owner_file in tuple(_held):
            with contextlib.suppress(OSError):  # a full or lost disk: the runs say so
                os.utime(owner_file)


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
