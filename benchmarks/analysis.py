"""From 10,000 runs by 90 epochs on disk to the accuracy-versus-batch figure, and plain pandas.

    python -m benchmarks.analysis [--runs 10000] [--epochs 90] [--folder FOLDER] [--files swept]
    python -m benchmarks.analysis --commands --runs 100000 --epochs 20

With --commands: what `sweeper analysis` takes for its table, estimates, figures, report and what to
run next. The runs are 20 points of as many seeds as that makes, with whole configs.

The files are as a sweep leaves them (swept: merged, 500 runs in each), all in one (merged), or one
for each run and table (small), as they are until they are merged.
Each measurement is a fresh process, imports included; memory is the process's peak.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

BATCHES = [3840, 7680, 15360, 23040, 30720]
WARMUPS = [0, 5, 10, 20]


def generate(folder: Path, num_runs: int, epochs: int, files: str) -> None:
    """Write the simulated results folder, once."""
    import numpy as np
    from simulated_studies import (
        simulated_curves,
        simulated_runs,
        write_compacted,
        write_results,
    )

    from analysis.decide.command import complete_config

    runs = simulated_runs(
        BATCHES,
        WARMUPS,
        num_runs // (len(BATCHES) * len(WARMUPS)),
        accuracy=lambda batch, warmup: 0.9 - batch / 200_000 - abs(warmup - 8) / 1000,
        noise=0.002,
        rng=np.random.default_rng(0),
    )
    whole = [json.dumps(complete_config(json.loads(c)), sort_keys=True) for c in runs.config_json]
    runs["config_json"] = whole
    curves = simulated_curves(runs, epochs)
    if files == "small":
        write_results(folder, runs, curves)
    else:
        write_compacted(folder, runs, curves, runs_per_file=500 if files == "swept" else None)


def ours(folder: Path, *, with_curves: bool) -> None:
    """Tables to figure with this package."""
    from analysis.figures.final import draw_against_batch
    from analysis.tables.comparable_runs import COLUMNS, group_comparable
    from analysis.tables.load import load_curves, load_runs

    runs = load_runs(folder, COLUMNS)
    if with_curves:
        print(f"  {len(load_curves(folder)):,} rows of curves read as well")
    drawing = draw_against_batch(group_comparable(runs)[0])
    drawing.figure.savefig(folder / "figure.png", dpi=160)


def plain_pandas(folder: Path) -> None:
    """Tables to figure with pandas and matplotlib alone."""
    import matplotlib as mpl
    import pandas as pd

    mpl.use("Agg")
    runs = pd.read_parquet(folder / "runs")
    means = runs.pivot_table(index="global_batch", columns="warmup_epochs", values="val_accuracy")
    means.plot(logx=True, marker="o").figure.savefig(folder / "pandas.png", dpi=160)


WAYS = {
    "analysis, runs only": lambda folder: ours(folder, with_curves=False),
    "analysis, runs and all curves": lambda folder: ours(folder, with_curves=True),
    "plain pandas, runs only": plain_pandas,
}


def command(words: str, folder: Path) -> None:
    """A command of `sweeper analysis`, whose files go into a new folder."""
    from analysis.cli import main as analyse

    out = tempfile.mkdtemp()
    if analyse([word.format(folder=folder, out=out) for word in words.split()]):
        sys.exit(f"{words} failed")


COMMANDS = {
    words.split()[0]: partial(command, words)
    for words in (
        "table {folder} --out {out}",
        "estimates {folder}",
        "figures {folder} --out {out}",
        "report {folder} --out {out}/report.html",
        "next {folder}",
    )
}


def _peak_gib() -> float:
    # Not ru_maxrss: Linux hands the parent's peak on to a child that it execs.
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 2**20


def main() -> None:
    """Generate, then measure each way in its own process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--epochs", type=int, default=90)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--files", choices=("swept", "merged", "small"), default="swept")
    parser.add_argument("--commands", action="store_true")
    parser.add_argument("--way", choices=WAYS | COMMANDS)
    options = parser.parse_args()
    if options.way:
        began = time.perf_counter()
        (WAYS | COMMANDS)[options.way](options.folder)
        seconds = time.perf_counter() - began
        busy = time.process_time()
        print(
            f"{options.way}: {seconds:.2f} s ({busy:.2f} s of processor, start included), "
            f"peak memory {_peak_gib():.2f} GiB"
        )
        return
    folder = (options.folder or Path(tempfile.mkdtemp())).absolute()
    if not (folder / "runs").is_dir():
        generate(folder, options.runs, options.epochs, options.files)
    for way in COMMANDS if options.commands else WAYS:
        words = [
            sys.executable,
            "-m",
            "benchmarks.analysis",
            "--way",
            way,
            "--folder",
            str(folder),
        ]
        subprocess.run(words, check=True, cwd=Path(__file__).parents[1])


if __name__ == "__main__":
    main()
