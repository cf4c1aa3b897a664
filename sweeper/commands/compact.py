"""`sweeper compact`: merge many small parquet files, while others read and write."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from sweeper.console.printing import note, say
from sweeper.spec.outcomes import DONE
from sweeper.spec.sentences import several
from sweeper.store.compaction import compact
from sweeper.store.damaged import find_damaged


def main(arguments: Sequence[str]) -> int:
    """Merge the small files of a results folder; return the exit code; ValueError for another."""
    parser = argparse.ArgumentParser(prog="sweeper compact", description=__doc__)
    parser.add_argument("results", nargs="?", default="results", help="results folder")
    results = Path(parser.parse_args(arguments).results)
    if not (results / "runs").is_dir():
        msg = f"results must be a folder with runs; got results={results}. Name another."
        raise ValueError(msg)
    say(f"{several(compact(results), 'run')} merged in {results}")
    for path in find_damaged(results):
        note(f"{path} is damaged and stays as it is; `sweeper status {results}` says what to do.")
    return DONE
