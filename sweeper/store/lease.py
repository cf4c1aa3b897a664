"""Leases on folders: the holder is a process, presumed alive while its heartbeat is fresh.

Making the folder is the claim, since only one process can. The heartbeat is the modification time
of the lease file, compared with the clock of its file system, so that machines need not agree on
the time. It has a thread of its own, because a launcher may block for longer than a lease lasts,
for instance while it first imports torch over a network.
"""

import contextlib
import os
import shutil
import socket
import threading
import time
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from sweeper.store.publish import (
    NOT_ALLOWED,
    publish_json,
    read_as,
    skip_if_forbidden,
    unique_suffix,
)

#: The file in a folder that names its holder.
LEASE = "lease.json"
HEARTBEAT_S = 5.0
EXPIRES_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A process that holds a lease."""

    host: str
    #: The machine's boot id and the namespace of process ids: containers may share a name, but not
    #: processes. Empty if unknown.
    boot: str
    pid: int
    born: str  # start in clock ticks since boot, as ids are reused; empty if unknown

    def is_alive(self) -> bool | None:
        """Whether the process exists; None if it cannot be seen from here."""
        me = this_process()
        if (self.host, self.boot) != (me.host, me.boot):
            return None
        return process_start(self.pid) == self.born


@cache
def this_process() -> Holder:
    """This process as a holder."""
    boot, namespace = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")
    is_linux = boot.exists() and namespace.is_symlink()
    return Holder(
        host=socket.gethostname(),
        boot=f"{boot.read_text().strip()} {namespace.readlink()}" if is_linux else "",
        pid=os.getpid(),
        born=process_start(os.getpid()) or "",
    )


def claim(folder: Path) -> bool:
    """Make a folder and hold it; False if it already exists."""
    folder.parent.mkdir(exist_ok=True)
    try:
        folder.mkdir()
    except FileExistsError:
        return False
    _hold(folder)
    return True


def _hold(folder: Path) -> None:
    publish_json(folder / LEASE, asdict(this_process()))
    _held.add(folder)
    _start_heartbeat(os.getpid())


def release(folder: Path) -> None:
    """Give up the lease on a folder, without removing the folder."""
    _held.discard(folder)
    (folder / LEASE).unlink(missing_ok=True)


def holds(folder: Path) -> bool:
    """Whether this process holds a folder."""
    return folder in _held


def lock(folder: Path) -> bool:
    """Claim a folder, or take it over from a holder that is presumed dead; False if it is held."""
    return claim(folder) or (not is_held(folder) and _take_over(folder))


def _take_over(folder: Path) -> bool:
    """Empty and hold a folder whose holder is presumed dead; False if another process is faster.

    The folder itself stays, so no other process can make it meanwhile; while it has no lease it
    still counts as held, because it has just been modified.
    """
    lease = folder / LEASE
    if lease.exists():
        aside = folder / f".{LEASE}-{unique_suffix()}"
        try:
            lease.rename(aside)  # only one process can
        except FileNotFoundError:
            return False
        if _is_live(aside):
            with contextlib.suppress(FileNotFoundError):  # its new holder has removed the folder
                aside.rename(lease)
            return False
    else:
        if is_held(folder):  # by the process that has just removed the lease
            return False
        try:
            lease.touch(exist_ok=False)  # only one process can
        except (FileExistsError, FileNotFoundError):
            return False
    for left in folder.iterdir():
        if left.is_dir():
            shutil.rmtree(left, ignore_errors=True)
        elif left != lease:
            left.unlink(missing_ok=True)
    _hold(folder)
    return True


def unlock(folder: Path) -> None:
    """Release a locked folder and remove it."""
    release(folder)
    shutil.rmtree(folder, ignore_errors=True)


def is_held(folder: Path) -> bool:
    """Whether a folder has a live holder; while it has no lease, the folder's own age counts."""
    lease = folder / LEASE
    return _is_live(lease if lease.exists() else folder)


def _is_live(path: Path) -> bool:
    """Whether a lease's holder is alive; judged by age if it cannot be seen, or for a folder."""
    holder = read_as(Holder, path)
    is_alive = holder.is_alive() if holder else None
    return is_alive if is_alive is not None else _age_s(path) < EXPIRES_S


def process_start(pid: int) -> str | None:
    """Start time of a process, field 22 of /proc/PID/stat; None if there is no such process."""
    if not Path("/proc/self/stat").exists():
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return None
        except PermissionError:
            pass
        return ""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    state, *fields = stat.rpartition(")")[2].split()
    return None if state == "Z" else fields[18]


_held: set[Path] = set()


@cache
def _start_heartbeat(pid: int) -> None:
    """Start the thread once per process id, since threads do not survive a fork."""
    threading.Thread(target=_beat, name=f"heartbeat-{pid}", daemon=True).start()


def _beat() -> None:
    pause = threading.Event()
    while not pause.wait(HEARTBEAT_S):
        for folder in tuple(_held):
            with contextlib.suppress(OSError):  # a full or lost disk: the runs report it
                os.utime(folder / LEASE)


def _age_s(path: Path) -> float:
    """Seconds since a file was modified, by the clock of its file system.

    A file from the future, because that clock was set back, is touched so that it ages from now on.
    """
    try:
        age = _now_s(path.parent) - path.stat().st_mtime
        if age < -EXPIRES_S:
            with skip_if_forbidden():
                os.utime(path)
    except OSError:
        return 0.0  # being made or being released right now, or a file system that cannot tell
    return age


def _now_s(folder: Path) -> float:
    """The file system's time; this machine's time for readers, who cannot take anything over."""
    now = folder / f".now-{unique_suffix()}"
    try:
        now.touch()
        try:
            return now.stat().st_mtime
        finally:
            now.unlink(missing_ok=True)
    except OSError as error:
        if error.errno in NOT_ALLOWED:
            return time.time()
        raise
