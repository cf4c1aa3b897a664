"""Hydra's own launchers make single-rank runs, each job one; with our sweepers they are refused."""

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

CONF = Path(__file__).parents[1] / "slurm/conf"
WORDS = ["batch=7680", "warmup=0", "schedule=constant", "epochs=1"]


def run(results: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sweeper", "-m", "--config-dir", str(CONF), *WORDS, *words]
    return subprocess.run(
        [*command, f"results={results}", f"hydra.sweep.dir={results.parent}"],
        cwd=results.parent,
        text=True,
        capture_output=True,
        check=False,
        timeout=900,
    )


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["joblib", "submitit_local"])
def test_every_job_is_a_run(results, launcher):
    done = run(
        results, "model=slow", "seed=0,1", "hydra/sweeper=basic", f"hydra/launcher={launcher}"
    )

    assert done.returncode == 0, done.stderr
    assert list(pd.read_parquet(results / "runs").outcome) == ["finished"] * 2


@pytest.mark.slow
def test_a_failed_job_leaves_the_others_and_the_command_fails(results):
    done = run(results, "model=raising,slow", "hydra/sweeper=basic", "hydra/launcher=basic")

    assert done.returncode == 1
    assert sorted(pd.read_parquet(results / "runs").outcome) == ["failed", "finished"]


def test_with_our_sweeper_they_are_refused(results):
    done = run(results, "model=slow", "hydra/launcher=basic")

    assert done.returncode == 2
    assert done.stderr == (
        "Nothing was started.\nhydra/launcher must be local, queue or slurm with this sweeper; got "
        "hydra._internal.core_plugins.basic_launcher.BasicLauncher. With Hydra's own launchers use "
        "hydra/sweeper=basic.\n"
    )
