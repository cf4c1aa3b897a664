"""Seconds and memory that large sweeps take: every command on folders of 1,000 to 100,000 runs.

    python benchmarks/ledger.py [--runs 1000 10000 100000] [--files merged] [--only plan status]

Writes finished rows for a grid as a sweep leaves them (merged, 500 runs in each file), or one file
for each run and table (small). Each command is a fresh process, imports included: processor and
wall seconds, and the most memory it had at once. Nothing is trained.
"""

import argparse
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import count, islice
from pathlib import Path
from typing import Any

SWEEPER, ANALYSIS = ("-m", "sweeper"), ("-m", "analysis")
EPOCHS = 30
RUNS_PER_FILE = 500


def grid(runs: int, results: Path, first_seed: int = 0) -> list[str]:
    """Overrides of so many points: 100 of each seed."""
    return [
        "batch=256,512,1280,3840,7680",
        "warmup=0,5,10,20",
        "base_lr=0.01,0.02,0.04,0.08,0.16",
        f"seed=range({first_seed},{first_seed + runs // 100})",
        f"results={results}",
    ]


def commands(runs: int, results: Path) -> dict[str, Sequence[str]]:
    """What a user may type, by a short name; `plan` is of runs that are not there."""
    there, new, out = grid(runs, results), grid(runs, results, 5_000), str(results.parent / "out")
    return {
        "plan": (*SWEEPER, "plan", *new),
        "plan, all done": (*SWEEPER, "plan", *there),
        "sweep, all skipped": (*SWEEPER, "-m", *there),
        "status": (*SWEEPER, "status", str(results)),
        "figures": (*ANALYSIS, "figures", str(results), "--out", out),
        "estimates": (*ANALYSIS, "estimates", str(results)),
        "claims": (*ANALYSIS, "claims", str(results)),
        "report": (*ANALYSIS, "report", str(results), "-o", f"{out}.html"),
        "compact": (*SWEEPER, "compact", str(results)),
    }


def fill(words: Sequence[str], results: Path, files: str) -> None:
    """Rows, curves and attempts of a grid of finished runs."""
    import numpy as np
    import pyarrow as pa

    from sweeper.commands.show_plan import plan_grid
    from sweeper.store.file_names import COMPACT_PREFIX
    from sweeper.store.schema import CURVES, RUNS, arrow_schema
    from sweeper.store.table_files import write_table

    planned, ledger = plan_grid(words, config_dir=None)
    ledger.prepare()
    rng = np.random.default_rng(0)
    done = (_done(spec, rng) for spec in planned.specs)
    for number in count():
        several = list(islice(done, RUNS_PER_FILE if files == "merged" else 1))
        if not several:
            return
        name = f"{COMPACT_PREFIX}{number:012x}.parquet"
        tables = {"runs": [row for row, _ in several], "curves": [e for _, c in several for e in c]}
        for table, columns in (("runs", RUNS), ("curves", CURVES)):
            rows = pa.Table.from_pylist(tables[table], schema=arrow_schema(columns))
            if files == "small":
                end = "-finished" if table == "runs" else ""
                name = f"{tables['runs'][0]['run_id']}-001{end}.parquet"
            write_table(rows, results / table / name)
        for row in tables["runs"]:
            folder = ledger.attempt_folder(row["run_id"], 1)
            folder.mkdir(parents=True)
            (folder / "config.json").write_text(row["config_json"])
            (folder / "released.json").write_text('{"outcome": "finished", "reason": "trained"}')


def _done(spec: Any, rng: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The row and the curve of a finished run."""
    from sweeper.store.run_columns import planned_row

    row = planned_row(spec)
    steps = spec.total_steps
    predicted_s = steps * (0.001 + 0.0005 * row["accumulation_steps"])
    train_s = predicted_s * rng.normal(1, 0.05)
    best = 0.92 - math.log2(row["global_batch"]) / 100 - abs(row["warmup_epochs"] - 8) / 1000
    best -= 0.02 * math.log2(row["base_lr"] / 0.04) ** 2 / 10 + 0.002 * rng.normal()
    curve = [
        {
            "run_id": row["run_id"], "attempt": 1, "epoch": epoch,
            "step": steps * epoch // EPOCHS, "realised_batch": row["global_batch"],
            "examples_seen": steps * epoch // EPOCHS * row["global_batch"], "lr": row["peak_lr"],
            "val_accuracy": (now := best * (1 - math.exp(-5 * epoch / EPOCHS))),
            "val_loss": 1.1 - now, "train_loss": 1.05 - now, "train_accuracy": now,
            "distance_from_start": math.log1p(epoch), "elapsed_s": train_s * epoch / EPOCHS,
        }
        for epoch in range(1, EPOCHS + 1)
    ]  # fmt: skip
    last = curve[-1]
    names = ("val_accuracy", "val_loss", "train_loss", "train_accuracy")
    measured = {
        **{name: last[name] for name in names},
        "best_val_accuracy": last["val_accuracy"], "best_val_loss": last["val_loss"],
        "metric_name": "val_accuracy", "metric": last["val_accuracy"],
        "best_metric": last["val_accuracy"], "epochs_completed": EPOCHS, "steps": steps,
        "realised_batch_min": row["global_batch"], "realised_batch_max": row["global_batch"],
        "wall_s": train_s + 2.0, "predicted_s": predicted_s + 2.0,
        "predicted_least_s": 0.9 * predicted_s,
        "predicted_most_s": 1.1 * predicted_s + 4.0,
        "start_s": 0.5, "train_s": train_s,
        "device_kind": "cpu", "attempt": 1, "outcome": "finished", "reason": "trained 30 epochs",
        "host": "here", "lr_series_hash": row["run_id"], "versions": "{}",
        "log_path": f"attempts/{row['run_id']}/001/log.txt",
    }  # fmt: skip
    return row | measured, curve


def measured(command: Sequence[str]) -> tuple[float, float, float]:
    """Processor and wall seconds of a command, and the most memory it had at once in GiB."""
    began = time.perf_counter()
    process = subprocess.Popen([sys.executable, *command], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"{' '.join(command)} ended with {os.waitstatus_to_exitcode(status)}")
    seconds = time.perf_counter() - began
    return usage.ru_utime + usage.ru_stime, seconds, usage.ru_maxrss / 2**20


def lines(runs: int, files: str, only: Sequence[str]) -> Iterator[str]:
    """Each command on a folder of so many runs, measured."""
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results"
        # In a process of its own: what a command had at its most begins with what its parent has.
        filling = [sys.executable, __file__, "--fill", files, *grid(runs, results)]
        subprocess.run(filling, check=True)
        # What a plan finds out of memory, in a process of its own, is remembered.
        measured((*SWEEPER, "plan", *grid(100, results, 5_000)))
        for name, command in commands(runs, results).items():
            if not only or name in only:
                busy, seconds, gib = measured(command)
                yield f"{runs:>8,} {files:7} {busy:8.2f} {seconds:8.2f} {gib:6.2f}  {name}"


def main() -> None:
    """Fill a folder, or measure on folders of each size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--files", choices=("merged", "small"), default="merged")
    parser.add_argument("--only", nargs="+", default=())
    parser.add_argument("--fill", choices=("merged", "small"))
    options, words = parser.parse_known_args()
    if options.fill:
        results = next(Path(w.removeprefix("results=")) for w in words if w.startswith("results="))
        fill(words, results, options.fill)
        return
    print("    runs files     CPU s   wall s    GiB")
    for runs in options.runs:
        for line in lines(runs, options.files, options.only):
            print(line, flush=True)


if __name__ == "__main__":
    main()
