"""Claims per second of many workers on one queue, whose runs take no time.

    python benchmarks/work.py [--runs 10000] [--workers 32]

A run is claimed, begun, given a row and a curve, and taken out of the queue, as `sweeper work` does
it; in place of the ranks is tests/stub_worker.py, so what is measured is the folder's part.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from sweeper.commands.show_plan import plan_grid
from sweeper.launch.queue.queue import Queue, Ticket
from sweeper.store.ledger import Ledger

STUB = Path(__file__).parents[1] / "tests/stub_worker.py"


def fill(runs: int, results: Path) -> Ledger:
    """Queue runs that differ in their seed."""
    words = ["batch=3840", "warmup=0", "micro_batch=3840", f"seed=range({runs})"]
    planned, ledger = plan_grid([*words, f"results={results}"], config_dir=None)
    ledger.prepare()
    queue = Queue(ledger)
    for spec in planned.specs:
        what = {"config": spec.config.resolved, "number": 1, "from_scratch": False}
        queue.add(Ticket(run_id=spec.run_id, submission="0", **what))
    return ledger


def main() -> None:
    """Fill a queue, and have workers empty it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=32)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        ledger = fill(options.runs, Path(folder) / "results")
        print(f"{options.runs:,} runs queued in {time.perf_counter() - began:.0f} s", flush=True)
        command = [sys.executable, str(STUB), str(ledger.results)]
        workers = [
            subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(options.workers)
        ]
        attempts = ledger.results / "attempts"
        while len(list(attempts.iterdir())) < options.workers:  # all have started
            time.sleep(0.1)
        first, began = len(list(attempts.iterdir())), time.perf_counter()
        codes = Counter(worker.wait() for worker in workers)
        seconds = time.perf_counter() - began
        rows = ledger.ended()
        numbers = Counter(row.attempt for row in rows.values())
        print(f"{len(rows):,} rows, attempts {dict(numbers)}, exit codes {dict(codes)}")
        print(f"{(options.runs - first) / seconds:.0f} claims per second over {seconds:.0f} s")


if __name__ == "__main__":
    main()
