"""Leases on folders: the holder is a process, presumed alive while its heartbeat is fresh.

Making the folder is the claim, since only one process can; taking it over is making a folder in it.
The heartbeat is the modification time of the lease file, compared with the clock of its file
system, so that machines need not agree on the time. It has a thread of its own, because a launcher
may block for longer than a lease lasts, for instance while it first imports torch over a network.
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
_TAKEN, _UNLOCKED = "taken-", "unlocked"
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
    folder.parent.mkdir(exist_ok=True)  # not `parents`: results that were moved must not seem here
    try:
        folder.mkdir()
    except FileExistsError:
        return False
    _hold(folder)
    return True


def take_over(folder: Path, *, is_dead: bool = False) -> bool:
    """Claim a folder whose holder is presumed dead or has unlocked it; False if it is held.

    With `is_dead` the holder is known to be gone, whatever its lease says.

    Each claim is a numbered folder in it, which only one process can make and which is never made
    again: a holder that sleeps past its lease finds the next one when it wakes.
    """
    last = _last_claim(folder)  # before `is_held`: whoever is faster takes this number
    number = 0 if last == folder else int(last.name.removeprefix(_TAKEN))
    if is_held(folder) and not is_dead:
        return False
    claimed = folder / f"{_TAKEN}{number + 1:03d}"
    try:
        claimed.mkdir()  # only one process can
        _hold(claimed)
    except (FileExistsError, FileNotFoundError):  # or the folder was removed meanwhile
        return False
    return True


def _last_claim(folder: Path) -> Path:
    """The folder of the last claim on a folder: its own, or that of the last takeover."""
    try:
        names = os.listdir(folder)  # noqa: PTH208  names alone
    except OSError:  # it is gone, or damaged: a loop of links
        return folder
    numbers = (name.removeprefix(_TAKEN) for name in names if name.startswith(_TAKEN))
    last = max((int(number) for number in numbers if number.isdecimal()), default=0)
    return folder / f"{_TAKEN}{last:03d}" if last else folder


def _hold(claimed: Path) -> None:
    publish_json(claimed / LEASE, asdict(this_process()))
    _held.add(claimed)
    _start_heartbeat(os.getpid())


def release(folder: Path) -> None:
    """Give up the lease on a folder, without removing the folder."""
    claimed = _last_claim(folder)
    _held.difference_update((folder, claimed))
    (claimed / LEASE).unlink(missing_ok=True)


def holds(folder: Path) -> bool:
    """Whether this process holds a folder, and no other has taken it over."""
    return _last_claim(folder) in _held


def was_taken_over(folder: Path) -> bool:
    """Whether a holder of a folder was presumed dead."""
    return _last_claim(folder) != folder


def lock(folder: Path) -> bool:
    """Claim a folder that many processes use in turn; False if it is held."""
    return claim(folder) or take_over(folder)


def unlock(folder: Path) -> None:
    """Release a locked folder, which stays, as the next claim on it has to be a new one."""
    claimed = _last_claim(folder)
    if claimed not in _held:
        return
    (claimed / _UNLOCKED).touch()  # without a lease, a young folder counts as held
    release(folder)
    for earlier in folder.iterdir() if claimed != folder else ():
        if earlier.is_dir() and earlier != claimed:
            shutil.rmtree(earlier, ignore_errors=True)


def is_held(folder: Path) -> bool:
    """Whether a folder has a live holder; while it has no lease, the folder's own age counts."""
    claimed = _last_claim(folder)
    lease = claimed / LEASE
    if lease.exists():
        return _is_live(lease)
    return not (claimed / _UNLOCKED).exists() and _is_live(claimed)


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
    state, *fields = stat.rpartition(")")[2].split()  # the name before it may have brackets
    return None if state == "Z" else fields[18]  # a zombie has ended, and waits for its parent


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
