"""A tuned sweep that is killed at random and repeated, and what must come of it all the same."""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import optuna
import pandas as pd
from process_tree import descendants

from sweeper.tuning.storage import open_storage

WORDS = [
    "+experiment=noisy_quadratic", "data.num_train_examples=1024", "data.length=8", "epochs=150",
    "batch=256,512", "base_lr=tag(log, interval(0.01, 1))", "warmup=tag(tune, choice(0, 1))",
    "hydra/sweeper/sampler=quasi_random", "hydra.sweeper.objective=val_loss", "n_trials=3",
    "hydra.sweeper.max_attempts=9",
]  # fmt: skip


def command(results: Path) -> list[str]:
    sweeper = [sys.executable, "-m", "sweeper", "-m", "hydra/sweeper=optuna"]
    return [*sweeper, *WORDS, f"results={results}"]


def make_calmly(results: Path) -> None:
    subprocess.run(command(results), check=True, capture_output=True, timeout=900)


def make_stormily(results: Path, kinds: list[str], luck: random.Random) -> Counter:
    """Kill the command, or one of its workers, once each; then let it finish; how many were hit."""
    hit: Counter[str] = Counter()
    for kind in kinds:
        process = subprocess.Popen(command(results), stdout=subprocess.DEVNULL)
        try:
            hit[kind] += _disturb(process, kind, luck)
            process.wait(timeout=900)
        finally:
            process.kill()
    make_calmly(results)
    return hit


def _disturb(process: subprocess.Popen, kind: str, luck: random.Random) -> bool:
    _wait_for_workers(process)
    time.sleep(luck.uniform(0, 0.6))
    victims = _wait_for_workers(process) if kind == "worker" else [process.pid]
    if not victims or process.poll() is not None:
        return False
    os.kill(luck.choice(victims), signal.SIGKILL)
    if kind == "worker" and luck.random() < 0.5:
        time.sleep(luck.uniform(0, 0.6))
        process.kill()
    return True


def _wait_for_workers(process: subprocess.Popen) -> list[int]:
    """The workers, as soon as there are any; none if the command has ended."""
    deadline = time.monotonic() + 600
    while not (found := _workers(process.pid)) and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def _workers(pid: int) -> list[int]:
    """The processes that the fork server, a child of the command, has made."""
    own = set(descendants(pid))
    return [child for one in own for child in descendants(one)]


def trials(results: Path) -> dict[str, list[tuple]]:
    storage = open_storage(results)
    return {
        name: [
            (trial.number, trial.state.name, trial.params, trial.value, trial.user_attrs)
            for trial in optuna.load_study(study_name=name, storage=storage).trials
        ]
        for name in optuna.get_all_study_names(storage)
    }


def runs(results: Path) -> pd.DataFrame:
    """What is scientific of the runs table."""
    columns = ["run_id", "outcome", "epochs_completed", "val_loss", "lr_series_hash"]
    return pd.read_parquet(results / "runs")[columns].sort_values("run_id", ignore_index=True)
