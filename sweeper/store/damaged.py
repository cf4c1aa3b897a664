"""Files of the tables that a power cut or a full disk has left cut short: found, set aside.

What is set aside lies in results/damaged, under the name of its table; its runs are made again.
"""

from collections.abc import Sequence
from pathlib import Path

from sweeper.store.ledger import COMPACT_PREFIX, ROW_FOLDERS, Ledger, is_whole


def find_damaged(results: Path) -> list[Path]:
    """The files of the tables that do not end as a parquet file does, by table and name."""
    paths = (path for table in ROW_FOLDERS for path in sorted((results / table).glob("*.parquet")))
    return [path for path in paths if not is_whole(path)]


def set_aside_damaged(ledger: Ledger) -> list[str]:
    """Move the damaged files out of the tables with the others of their runs; a sentence each."""
    found = find_damaged(ledger.results)
    for path in found:
        for other in _of_the_same_runs(path):
            folder = ledger.results / "damaged" / other.parent.name
            folder.mkdir(parents=True, exist_ok=True)
            other.replace(folder / other.name)
    return [f"{path} was cut short: moved to {ledger.results / 'damaged'}." for path in found]


def _of_the_same_runs(path: Path) -> Sequence[Path]:
    """A file of a table and what the other tables hold of its attempt, or of its merged runs."""
    stem = path.stem
    if not stem.startswith(COMPACT_PREFIX):
        stem = "-".join(stem.split("-")[:2])  # run id and attempt
    root = path.parents[1]
    return [other for table in ROW_FOLDERS for other in (root / table).glob(f"{stem}*.parquet")]
