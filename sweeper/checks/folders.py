"""Whether the results folder keeps the promises that the ledger builds on."""

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from sweeper.checks.finding import Finding, broken, good, warning

_GIB = 2**30
_SMALLEST_DISK_GIB = 1.0
_LARGEST_CLOCK_DIFFERENCE_S = 5.0
_NETWORK_FILE_SYSTEMS = ("nfs", "lustre", "gpfs", "beegfs", "cifs", "ceph", "fuse", "9p", "afs")


def folder_checks(results: Path) -> Iterator[Finding]:
    """Look at the results folder, or at the folder that it would be made in."""
    folder = results.resolve()
    while not folder.exists():
        folder = folder.parent
    probe = folder / f".doctor-{os.getpid()}"
    try:
        probe.mkdir()
    except OSError as error:
        yield broken(
            "results", f"{folder} cannot be written: {error.strerror}", "Choose another folder."
        )
        return
    try:
        yield rename_check(probe)
        yield claim_check(probe)
        yield clock_check(probe)
    finally:
        shutil.rmtree(probe, ignore_errors=True)
    yield disk_check(folder)
    yield shared_check(folder, Path("/proc/mounts"))


def rename_check(folder: Path) -> Finding:
    """A file is replaced at once by a rename, and is there for a listing."""
    first, second = folder / "first", folder / "second"
    first.write_text("new")
    second.write_text("old")
    first.replace(second)
    if second.read_text() == "new" and [path.name for path in folder.iterdir()] == ["second"]:
        return good("rename", "replaces a file at once")
    return broken(
        "rename", "does not replace a file at once", "Rows could be torn: use another file system."
    )


def claim_check(folder: Path) -> Finding:
    """Only one process can make a folder or link a file: that is how runs are claimed."""
    (folder / "claim").mkdir()
    (folder / "file").touch()
    os.link(folder / "file", folder / "linked")
    try:
        (folder / "claim").mkdir()
        return broken("claims", "a folder can be made twice", "Use another file system.")
    except FileExistsError:
        pass
    try:
        os.link(folder / "file", folder / "linked")
        return broken("claims", "a file can be linked twice", "Use another file system.")
    except FileExistsError:
        return good("claims", "a folder is made once, a file linked once")


def clock_check(folder: Path) -> Finding:
    """Modification times move on: they are the heartbeats."""
    beat = folder / "beat"
    beat.touch()
    before = beat.stat().st_mtime
    time.sleep(1.1)
    os.utime(beat)
    after = beat.stat().st_mtime
    if after <= before:
        return broken(
            "heartbeats", "modification times stand still", "Use another file system for results."
        )
    difference = after - time.time()
    if abs(difference) > _LARGEST_CLOCK_DIFFERENCE_S:
        return warning(
            "heartbeats",
            f"the file system's clock differs by {difference:.0f} s",
            "Heartbeats use its clock alone, so runs are safe; times in the tables may confuse.",
        )
    return good("heartbeats", "modification times move on")


def disk_check(folder: Path) -> Finding:
    """Room for checkpoints and rows."""
    free_gib = shutil.disk_usage(folder).free / _GIB
    if free_gib < _SMALLEST_DISK_GIB:
        return warning("disk", f"{free_gib:.2f} GiB free in {folder}", "Make room before a sweep.")
    return good("disk", f"{free_gib:.0f} GiB free in {folder}")


def shared_check(folder: Path, mounts: Path) -> Finding:
    """Whether other nodes can see the folder."""
    kind = file_system(folder, mounts)
    if kind is None or kind.startswith(_NETWORK_FILE_SYSTEMS):
        return good("file system", kind or "unknown")
    return warning(
        "file system",
        f"{kind}, which is usually of this machine alone",
        "For hydra/launcher=slurm, results= must be a folder that all nodes see under this path.",
    )


def file_system(folder: Path, mounts: Path) -> str | None:
    """The kind of file system that a folder lies on; None if it cannot be told."""
    if not mounts.exists():
        return None
    lines = [line.split() for line in mounts.read_text().splitlines()]
    over = [(at, kind) for _, at, kind, *_ in lines if folder.is_relative_to(at)]
    return max(over, key=lambda mount: len(mount[0]))[1] if over else None
