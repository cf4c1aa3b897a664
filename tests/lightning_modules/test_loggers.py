"""Mirrors of the curves: off by default, and never the end of a run."""

import pandas as pd
import pytest

from sweeper.launch.local import run_here
from sweeper.launch.slots import Machine
from sweeper.ledger import Ledger
from sweeper.planning import plan, tasks


@pytest.fixture
def train(grid, results):
    """One short run with a logger; its row and its attempt's folder."""

    def run(*words):
        ledger = Ledger(results)
        ledger.prepare()
        short = ["epochs=2", "warmup=0", "schedule=constant", "batch=7680"]
        planned = plan(grid(*short, *words), ledger)
        to_do = tasks(planned, ledger, retry=None, rerun=None)
        for _ in run_here(to_do, ledger, Machine(cores=2)):
            pass
        (row,) = pd.read_parquet(results / "runs").to_dict("records")
        return row, (results / row["log_path"]).parent

    return run


def test_csv_mirrors_the_curve(train, results):
    row, folder = train("logger=csv")

    mirrored = pd.read_csv(folder / "csv" / "metrics.csv")
    curve = pd.read_parquet(results / "curves").sort_values("epoch")
    assert row["outcome"] == "finished"
    assert list(mirrored.val_accuracy) == pytest.approx(list(curve.val_accuracy))


def test_no_logger_is_used_unless_asked_for(train):
    _, folder = train()

    assert not (folder / "csv").exists()


@pytest.mark.parametrize("target", ["provoked.UnreachableLogger", "no_such_package.Logger"])
def test_a_logger_that_cannot_be_reached_does_not_fail_the_run(train, target):
    row, folder = train(f"logger._target_={target}")

    assert row["outcome"] == "finished"
    assert "logger: given up after" in (folder / "log.txt").read_text()


def test_a_logger_does_not_change_the_runs_identity(grid):
    from sweeper.domain.run_spec import run_spec

    (plain,), (mirrored,) = grid("batch=3840"), grid("batch=3840", "logger=csv")

    assert run_spec(plain).run_id == run_spec(mirrored).run_id
