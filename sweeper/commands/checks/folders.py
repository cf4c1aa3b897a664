"""Whether the file system of the results folder does what the ledger relies on."""

import contextlib
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sweeper.commands.checks.check import Check, broken, good, warning
from sweeper.launch.slurm.commands import drop_task_variables, run_program
from sweeper.store.publish import unique_suffix
from sweeper.store.run_columns import LAST_EPOCH

_GIB = 2**30
_SMALLEST_DISK_GIB = 1.0
_FEWEST_FILES = 10_000
_LARGEST_CLOCK_DIFFERENCE_S = 5.0
_NETWORK_FILE_SYSTEMS = ("nfs", "lustre", "gpfs", "beegfs", "cifs", "ceph", "fuse", "9p", "afs")


def folder_checks(results: Path) -> Iterator[Check]:
    """Check the results folder, or the folder that it would be created in."""
    folder = results.resolve()
    while not folder.exists():
        folder = folder.parent
    probe = folder / f".doctor-{unique_suffix()}"
    try:
        probe.mkdir()
    except OSError as error:
        found = f"{folder} cannot be written: {error.strerror}"
        yield broken("results", found, "Choose another folder.")
        return
    try:
        yield _rename_check(probe)
        yield _claim_check(probe)
        yield _clock_check(probe)
        yield from _nodes_check(probe)
    except OSError as error:
        found = f"{folder} cannot be used: {error.strerror}"
        yield broken("results", found, "Free some space there, or choose another folder.")
    finally:
        shutil.rmtree(probe, ignore_errors=True)
    yield _disk_check(folder)
    yield shared_check(folder, Path("/proc/mounts"))
    if (results / "runs").is_dir():
        yield _rows_check(results)


def _rename_check(folder: Path) -> Check:
    """A rename replaces a file atomically, and listings show it."""
    first, second = folder / "first", folder / "second"
    first.write_text("new")
    second.write_text("old")
    first.replace(second)
    if second.read_text() == "new" and [path.name for path in folder.iterdir()] == ["second"]:
        return good("rename", "replaces a file atomically")
    remedy = "Readers could see half a row: use another file system."
    return broken("rename", "does not replace a file atomically", remedy)


def _claim_check(folder: Path) -> Check:
    """A folder can be created only once: that is how runs are claimed."""
    claim = folder / "claim"
    claim.mkdir()
    with contextlib.suppress(FileExistsError):
        claim.mkdir()
        return broken("claims", "a folder can be created twice", "Use another file system.")
    return good("claims", "a folder is created once")


def _clock_check(folder: Path) -> Check:
    """Modification times advance, because they serve as heartbeats."""
    beat = folder / "beat"
    beat.touch()
    before = beat.stat().st_mtime
    time.sleep(1.1)
    os.utime(beat)
    after = beat.stat().st_mtime
    if after <= before:
        remedy = "Use another file system for results."
        return broken("heartbeats", "modification times do not advance", remedy)
    if abs(difference_s := after - time.time()) > _LARGEST_CLOCK_DIFFERENCE_S:
        found = f"the file system's clock differs by {difference_s:.0f} s"
        remedy = "Heartbeats use only that clock, so runs are safe; times in the tables may be off."
        return warning("heartbeats", found, remedy)
    return good("heartbeats", "modification times advance")


def _nodes_check(folder: Path) -> Iterator[Check]:
    """In a multi-node job, whether every node sees what this node writes."""
    nodes = int(os.environ.get("SLURM_JOB_NUM_NODES", "1"))
    if nodes == 1 or not shutil.which("srun"):
        return
    written = folder / "for-all-nodes"
    written.touch()
    everywhere = (f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1")
    command = ("sh", "-c", '[ ! -e "$0" ] || echo seen', str(written))
    environment = drop_task_variables(os.environ)
    output = run_program("srun", *everywhere, *command, environment=environment, succeeds=False)
    seen = (output or "").split().count("seen")
    if seen == nodes:
        yield good("nodes", f"all {nodes} see the folder")
    else:
        remedy = "Choose a folder that all nodes see under the same path."
        yield broken("nodes", f"{seen} of {nodes} see {folder.parent}", remedy)


def _disk_check(folder: Path) -> Check:
    """Room for checkpoints and rows, in bytes and in files."""
    free_gib = shutil.disk_usage(folder).free / _GIB
    files = os.statvfs(folder)
    if files.f_files and files.f_favail < _FEWEST_FILES:
        found = f"room for {files.f_favail} more files in {folder}"
        return warning("disk", found, "Delete some files.")
    if free_gib < _SMALLEST_DISK_GIB:
        found = f"{free_gib:.2f} GiB free in {folder}"
        return warning("disk", found, "Free some space before a sweep.")
    return good("disk", f"{free_gib:.0f} GiB free in {folder}")


def _rows_check(results: Path) -> Check:
    """Each row has the values of its curve's end."""
    from sweeper.store.table_files import read_rows  # pyarrow: 0.2 s

    def read(table: str, *columns: str) -> Iterator[tuple[tuple[str, int], Mapping[str, Any]]]:
        for path in (results / table).glob("*.parquet"):
            for row in read_rows(path, ["run_id", "attempt", *LAST_EPOCH, *columns]):
                yield (row["run_id"], row["attempt"]), row

    ends, edited = dict(read("curves")), set[str]()  # a curve's rows are in order
    for key, row in read("runs", "metric_name", "metric"):
        end = ends.get(key, row)
        values = {name: end[name] for name in LAST_EPOCH}
        if (metric := values.get(row["metric_name"])) is not None:
            values["metric"] = metric
        if any(str(row[name]) != str(value) for name, value in values.items()):  # nan is nan
            edited.add(row["run_id"])
    if not edited:
        return good("rows", "agree with their curves")
    found = f"{', '.join(sorted(edited))}: other values than at the end of the curve"
    return warning("rows", found, "Restore the files, or `sweeper delete` trains the runs again.")


def shared_check(folder: Path, mounts: Path) -> Check:
    """Whether other nodes can see the folder."""
    kind = file_system(folder, mounts)
    if kind is None or kind.startswith(_NETWORK_FILE_SYSTEMS):
        return good("file system", kind or "unknown")
    return warning(
        "file system",
        f"{kind}, which is usually local to one machine",
        "For hydra/launcher=slurm, results must be a folder that all nodes see under this path.",
    )


def file_system(folder: Path, mounts: Path) -> str | None:
    """The kind of file system that a folder lies on; None if it is unknown."""
    if not mounts.exists():
        return None
    lines = [line.split() for line in mounts.read_text().splitlines()]
    over = [(at, kind) for _, at, kind, *_ in lines if folder.is_relative_to(at)]
    return max(over, key=lambda mount: len(mount[0]))[1] if over else None
