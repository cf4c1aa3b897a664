"""What accumulation costs: memory and speed of ever larger global batches at one micro-batch.

    python benchmarks/memory.py [--repeats 3] [--epochs 1] [--batches 3840,30720,61440]

Each run is a small network on random images of 3 x 32 x 32, in a fresh one-thread process, through
the sweep's own launcher, in micro-batches of 256. Each is preceded by a run of batch 256, with
which it is compared. The inputs of 61,440 examples alone would be 0.70 GiB.
"""

import argparse
import statistics
import tempfile
from pathlib import Path

from sweeper.commands.show_plan import plan_grid
from sweeper.launch.local.launcher import run_here
from sweeper.launch.local.slots import Machine
from sweeper.planning.plan import claim_tasks
from sweeper.store.ledger import Ledger

MICRO_BATCH = 256
PAPER = (3840, 7680, 15_360, 23_040, 30_720)  # McCord & Dash 2021
BATCHES = sorted({*(MICRO_BATCH * 2**n for n in range(1, 8)), *PAPER, 61_440})
WORDS = [
    *("warmup=0", "schedule=constant", f"micro_batch={MICRO_BATCH}", "model.channels=[4,8]"),
    *("data=synthetic", "data.shape=[3,32,32]", "data.num_classes=10"),
    *("data.num_train_examples=61440", "data.num_val_examples=256"),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batches", default=",".join(map(str, BATCHES)), help="by commas")
    given = parser.parse_args()
    batches = [int(word) for word in given.batches.split(",")]
    _run(MICRO_BATCH, epochs=1)  # warms the fork server
    first: list[float] = []
    peaks: dict[int, list[float]] = {batch: [] for batch in batches}
    ratios: dict[int, list[float]] = {batch: [] for batch in batches}
    for repeat in range(given.repeats):
        for batch in batches:
            speed_before, peak_before = _run(MICRO_BATCH, epochs=given.epochs)
            speed, peak = _run(batch, epochs=given.epochs)
            first.append(peak_before)
            peaks[batch].append(peak)
            ratios[batch].append(speed / speed_before)
            print(f"{repeat + 1}: {batch:6,} {peak:.3f} GiB, {speed:,.0f}/s", flush=True)
    base = statistics.median(first)
    print(
        "\n| global batch | accumulation steps | peak memory, GiB | beyond 256, MiB | examples/s |"
    )
    print("| --- | --- | --- | --- | --- |")
    print(f"| {MICRO_BATCH} | 1 | {base:.3f} | {_spread(first, base)} | 1 |")
    for batch in batches:
        print(
            f"| {batch:,} | {batch // MICRO_BATCH} | {statistics.median(peaks[batch]):.3f} | "
            f"{_spread(peaks[batch], base)} | {statistics.median(ratios[batch]):.2f} |"
        )


def _run(batch: int, *, epochs: int) -> tuple[float, float]:
    """Examples per second and peak memory of the process [GiB]."""
    with tempfile.TemporaryDirectory() as folder:
        words = [*WORDS, f"batch={batch}", f"epochs={epochs}", f"results={folder}/results"]
        planned, ledger = plan_grid(words, config_dir=None)
        ledger.prepare()
        to_do = claim_tasks(planned, ledger, retry=None, rerun=None)
        for _ in run_here(to_do, ledger, Machine(cores=1)):
            pass
        (row,) = (
            Ledger(Path(folder) / "results")
            .rows({planned.specs[0].run_id}, ["examples_per_s", "peak_memory_gib"])
            .values()
        )
        return row["examples_per_s"], row["peak_memory_gib"]


def _spread(peaks: list[float], base: float) -> str:
    """Median and extremes of the difference from a base, in MiB."""
    differences = [(peak - base) * 1024 for peak in peaks]
    middle, low, high = statistics.median(differences), min(differences), max(differences)
    return f"{middle:+.0f} ({low:+.0f} to {high:+.0f})"


if __name__ == "__main__":
    main()
