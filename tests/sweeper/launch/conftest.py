"""Runs on this machine, made short."""

import pandas as pd
import pytest

from sweeper.launch.local.launcher import run_here
from sweeper.launch.local.slots import Machine
from sweeper.planning.plan import claim_tasks, plan
from sweeper.store.ledger import Ledger

SHORT = {"epochs": 1, "warmup": 0, "schedule": {"name": "constant"}, "batch": 7680}


@pytest.fixture
def short(config):
    """The config of a short run, of two steps, that differs by these changes."""
    data = {**config()["data"], "num_train_examples": 15_360}
    return lambda **changes: config(**SHORT | {"data": data} | changes)


@pytest.fixture
def launch(short, results):
    """Run configs that differ from a short run by these changes; the rows."""

    def run(*changes, jobs="auto", into=results) -> pd.DataFrame:
        ledger = Ledger(into)
        ledger.prepare()
        planned = plan([short(**change) for change in changes], ledger)
        to_do = claim_tasks(planned, ledger, retry=None, rerun=None)
        for _ in run_here(to_do, ledger, Machine(cores=2, jobs=jobs)):
            pass
        return pd.read_parquet(into / "runs")

    return run
