"""Killed at any instant, a sweep loses nothing and does nothing twice.

`make test-all` kills a few times; `make soak` (SWEEPER_SOAK_KILLS=30) many times.
"""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
from process_tree import descendants

from sweeper.store.schema import CURVES, RUNS

KILLS = int(os.environ.get("SWEEPER_SOAK_KILLS", "3"))
WORDS = [
    "batch=3840,7680", "warmup=0,1", "seed=0,1", "epochs=4", "schedule=constant",
    "data.num_train_examples=15360",
]  # fmt: skip
CIRCUMSTANCES = {
    "wall_s", "train_s", "examples_per_s", "peak_memory_gib", "attempt",
    "started_at", "host", "git_commit", "versions", "log_path", "config_json", "elapsed_s",
    "micro_batch", "start_s", "predicted_s", "predicted_least_s", "predicted_most_s",
    "predicted_memory_gib",
}  # fmt: skip


def command(results: Path) -> list[str]:
    return [sys.executable, "-m", "sweeper", "-m", *WORDS, f"results={results}"]


def table(results: Path, name: str, columns: dict) -> pd.DataFrame:
    keys = ["run_id", "epoch"] if name == "curves" else ["run_id"]
    frame = pd.read_parquet(results / name).sort_values(keys, ignore_index=True)
    return frame[[column for column in columns if column not in CIRCUMSTANCES]]


def wait_for_moment(process: subprocess.Popen, results: Path, luck: random.Random) -> None:
    """Until a random instant, or until a checkpoint or a parquet file is half written."""
    pattern = luck.choice([None, "attempts/*/*.tmp", "runs/.*.tmp", "curves/.*.tmp"])
    deadline = time.monotonic() + (luck.uniform(0.5, 12) if pattern is None else 20)
    while time.monotonic() < deadline and process.poll() is None:
        if pattern and next(results.glob(pattern), None):
            return
        time.sleep(0 if pattern else 0.01)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds the workers through /proc")
def test_a_sweep_killed_at_random_ends_as_an_undisturbed_one(tmp_path):
    calm, stormy = tmp_path / "calm", tmp_path / "stormy"
    subprocess.run(command(calm), check=True, capture_output=True, timeout=900)
    luck = random.Random(KILLS)
    kills = {"orchestrator": 0, "worker": 0}

    for _ in range(KILLS):
        process = subprocess.Popen(command(stormy), stdout=subprocess.DEVNULL)
        wait_for_moment(process, stormy, luck)
        workers = descendants(process.pid)
        if luck.random() < 0.3 and len(workers) > 2:
            os.kill(workers[-1], signal.SIGKILL)
            kills["worker"] += 1
            process.wait(timeout=900)
        elif process.poll() is None:
            process.kill()
            kills["orchestrator"] += 1
            process.wait()
    for _ in range(2):  # a worker killed in the last round is tried again by the second call
        last = subprocess.run(
            command(stormy), capture_output=True, text=True, timeout=900, check=False
        )

    assert kills["orchestrator"] > 0
    assert last.returncode == 0, last.stdout + last.stderr
    pd.testing.assert_frame_equal(
        table(stormy, "runs", RUNS), table(calm, "runs", RUNS), check_exact=True
    )
    pd.testing.assert_frame_equal(
        table(stormy, "curves", CURVES), table(calm, "curves", CURVES), check_exact=True
    )
    if (stormy / "superseded/runs").is_dir():
        earlier = pd.read_parquet(stormy / "superseded/runs")
        assert set(earlier.outcome) == {"preempted"}
    assert not [p for p in stormy.rglob("*") if p.name.endswith((".tmp", ".ckpt"))]
    assert not list((stormy / "active").iterdir())
