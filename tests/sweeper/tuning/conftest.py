"""Studies of the noisy quadratic, whose runs take a second or less."""

from collections.abc import Callable
from pathlib import Path

import optuna
import pandas as pd
import pytest

from sweeper.commands.overrides import add_own_classes
from sweeper.commands.refusals import refuse
from sweeper.commands.tune import run_tuning
from sweeper.launch.local.launcher import run_here
from sweeper.launch.local.slots import Machine
from sweeper.tuning.storage import open_storage

QUICK = [
    "+experiment=noisy_quadratic", "data.num_train_examples=1024", "data.length=8", "epochs=1",
    "model.noise_scale=256",
]  # fmt: skip


@pytest.fixture
def tune(loader, sweeper_settings, results) -> Callable[..., int]:
    """Run the studies that overrides ask for; the exit code."""

    def run(*words: str, jobs: int = 2, quick: bool = True) -> int:
        given = {word.partition("=")[0] for word in words}
        base = [word for word in QUICK if word.partition("=")[0] not in given] if quick else []
        of_sweeper = [word for word in words if word.startswith("hydra")]
        ours = [word for word in words if word not in of_sweeper]
        try:
            return run_tuning(
                add_own_classes([*base, *ours, f"results={results}"]),
                loader,
                sweeper_settings("hydra/sweeper=optuna", *of_sweeper),
                lambda tasks, ledger: run_here(tasks, ledger, Machine(cores=2, jobs=jobs)),
            )
        except ValueError as error:
            return refuse(error)

    return run


@pytest.fixture
def studies(results) -> Callable[[], list[optuna.Study]]:
    """The studies in the results folder, by name."""

    def load() -> list[optuna.Study]:
        storage = open_storage(results)
        names = sorted(optuna.get_all_study_names(storage))
        return [optuna.load_study(study_name=name, storage=storage) for name in names]

    return load


@pytest.fixture
def rows(results: Path) -> Callable[[], pd.DataFrame]:
    """The runs table by run id."""
    return lambda: pd.read_parquet(results / "runs").set_index("run_id")
