"""Finds table files damaged by a power cut, a full disk or a bad disk, and sets them aside.

They are moved to a folder for each table in results/damaged, and their runs are trained again. For
a merged file, which may hold hundreds of runs, the user has to decide. A run's file that another
program has rewritten, and so lost its schema_version, counts as damaged: the analysis omits it too.
"""

import errno
import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from sweeper.store.file_names import COMPACT_PREFIX, ROW_FOLDERS, RowFile
from sweeper.store.ledger import Ledger

#: With more files, only both ends of each are checked, as reading a whole file takes 1.5 ms.
_FEW = 1000
_END_BYTES = 2**16  # more than the metadata
_OF_A_RUN = re.compile(r"[0-9a-f]{12}-\d{3}[-.]")


def find_damaged(results: Path) -> list[Path]:
    """The table files that cannot be read or do not match their checksums.

    In order of table and name. OSError if a file may not be read.
    """
    paths = [path for table in ROW_FOLDERS for path in sorted((results / table).glob("*.parquet"))]
    return [path for path in paths if _is_damaged(path, only_ends=len(paths) > _FEW)]


def sound_rows(ledger: Ledger) -> dict[str, RowFile]:
    """The current row of each run, except rows of damaged files, whose runs are trained again."""
    damaged = find_damaged(ledger.results)
    return ledger.ended(
        ignored={other.name for path in damaged for other in _files_of_same_runs(path)}
    )


def set_aside_damaged(ledger: Ledger) -> list[str]:
    """Move damaged files, with the other files of their runs, out of the tables; a sentence each.

    Raises:
        ValueError: if any of them is a merged file; then nothing is moved.
    """
    found = find_damaged(ledger.results)
    for path in found:
        if path.name.startswith(COMPACT_PREFIX):
            aside = ledger.results / "damaged"
            files = _files_of_same_runs(path)
            moves = [["mv", file, aside / f"{file.parent.name}-{file.name}"] for file in files]
            commands = [shlex.join(map(str, words)) for words in (["mkdir", "-p", aside], *moves)]
            msg = (
                f"A merged file must be intact; {path} is damaged. Restore a copy, or, "
                f"to train its runs again: {' && '.join(commands)}"
            )
            raise ValueError(msg)
    for path in found:
        for other in _files_of_same_runs(path):
            folder = ledger.results / "damaged" / other.parent.name
            folder.mkdir(parents=True, exist_ok=True)
            other.replace(folder / other.name)
    return [f"{path} is damaged: moved to {ledger.results / 'damaged'}." for path in found]


def consequence(path: Path) -> str:
    """What the next sweep does about a damaged file."""
    does = "says what to do" if path.name.startswith(COMPACT_PREFIX) else "trains its runs again"
    return f"{path} is damaged: the next sweep {does}"


def _is_damaged(path: Path, *, only_ends: bool) -> bool:
    try:
        modified_ns = path.stat().st_mtime_ns
        with path.open("rb") as file:
            begin, size = file.read(4), file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _END_BYTES))
            end = file.read()
        has_ends = begin == end[-4:] == b"PAR1"
        has_ends &= b"schema_version" in end or not _OF_A_RUN.match(path.name)
        if only_ends or not has_ends:
            return not has_ends
        from sweeper.store.table_files import is_sound  # pyarrow: 0.2 s

        return not is_sound(path, modified_ns)
    except FileNotFoundError:  # merged or superseded just now
        return False
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR):
            return True
        raise


def _files_of_same_runs(path: Path) -> Sequence[Path]:
    """A table file, and the files of the other tables for its attempt or its merged runs."""
    stem = path.stem
    if not path.name.startswith(COMPACT_PREFIX):
        stem = "-".join(stem.split("-")[:2])  # run id and attempt
    root = path.parents[1]
    return [other for table in ROW_FOLDERS for other in (root / table).glob(f"{stem}*.parquet")]
