"""Seconds that a large ledger costs: plan, skip, status and read 10,000 runs.

    python benchmarks/ledger.py [--runs 10000]

Writes finished rows for a grid as the sweep would, then times the user's own commands on it, with
the rows in files of their own and merged.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pandas as pd

from sweeper.commands.plan import plan_grid
from sweeper.store.attempt import planned_row
from sweeper.store.compaction import compact
from sweeper.store.ledger import Ledger

GRID = ["batch=256,512,1280,3840,7680", "warmup=range(20)", "base_lr=0.01,0.02,0.04,0.08,0.16"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000)
    runs = parser.parse_args().runs
    words = [*GRID, f"seed=range({max(1, runs // 500)})"]
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results"
        words.append(f"results={results}")
        _timed("compose and check the grid", lambda: plan_grid(words, config_dir=None))
        _timed("write its rows, one file each", lambda: _fill(words))
        _measure("files of their own", words, results)
        _timed("merge the files", lambda: compact(results))
        _measure("merged", words, results)


def _fill(words: list[str]) -> None:
    planned, ledger = plan_grid(words, config_dir=None)
    ledger.prepare()
    curve = [
        {"epoch": epoch, "step": epoch, "val_accuracy": 0.9, "val_loss": 0.3, "lr": 0.1}
        for epoch in range(1, 31)
    ]
    for spec in planned.specs:
        row = {**planned_row(spec), "outcome": "finished", "reason": "trained 30 epochs"}
        ledger.publish({**row, "attempt": 1, "val_accuracy": 0.9}, curve)


def _measure(kind: str, words: list[str], results: Path) -> None:
    sweep = [sys.executable, "-m", "sweeper", "-m", *words]
    status = [sys.executable, "-m", "sweeper", "status", str(results)]
    _timed(f"{kind}: repeat the sweep, all skipped", lambda: _run(sweep))
    _timed(f"{kind}: status", lambda: _run(status))
    _timed(f"{kind}: pandas.read_parquet(runs)", lambda: pd.read_parquet(results / "runs"))
    ended = _timed(f"{kind}: how each run ended", lambda: Ledger(results).ended())
    print(f"{'':10} {len(ended)} runs known")


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _timed(what: str, action):
    started = time.perf_counter()
    result = action()
    print(f"{time.perf_counter() - started:8.2f} s  {what}", flush=True)
    return result


if __name__ == "__main__":
    main()
