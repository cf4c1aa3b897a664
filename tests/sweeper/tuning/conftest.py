"""Studies of the noisy quadratic, whose runs take a second or less."""

from collections.abc import Callable
from pathlib import Path

import optuna
import pandas as pd
import pytest
from hydra import compose, initialize_config_dir

from sweeper import CONFIG_FOLDER
from sweeper.commands.overrides import add_own_classes, expand, plain_config, to_plain_values
from sweeper.commands.refusals import refuse
from sweeper.commands.tune import run_tuning
from sweeper.commands.tuning_overrides import sort_overrides
from sweeper.launch.local.launcher import run_here
from sweeper.launch.local.slots import Machine
from sweeper.tuning.storage import open_storage
from sweeper.tuning.study_settings import StudySettings

QUICK = [
    "+experiment=noisy_quadratic", "data.num_train_examples=1024", "data.length=8", "epochs=1",
    "model.noise_scale=256",
]  # fmt: skip


@pytest.fixture
def tune(loader, results) -> Callable[..., int]:
    """Run the studies that overrides ask for; the exit code."""

    def run(*words: str, jobs: int = 2, quick: bool = True) -> int:
        ours = [word for word in words if not word.startswith("hydra")]
        given = {word.partition("=")[0] for word in ours}
        base = [word for word in QUICK if word.partition("=")[0] not in given] if quick else []
        found = sort_overrides(add_own_classes([*base, *ours]), loader)
        named = [word for word in words if word.startswith(("hydra", "n_trials", "retry"))]
        with initialize_config_dir(version_base="1.3", config_dir=str(CONFIG_FOLDER)):
            composed = compose(
                "config",
                ["hydra/sweeper=optuna", f"results={results}", *found.fixed, *named],
                return_hydra_config=True,
            )
        settings = to_plain_values({str(k): v for k, v in composed.hydra.sweeper.items()})
        named = {key: composed[key] for key in ("metric", "metric_mode")}
        fixed = [word for word in found.fixed if not word.startswith(("n_trials", "retry"))]
        try:
            return run_tuning(
                list(found.points()),
                StudySettings.from_config(settings, found.space, **named),
                {**plain_config(composed), **settings},
                lambda more: expand(loader, [*fixed, *more]),
                lambda tasks, ledger: run_here(tasks, ledger, Machine(cores=2, jobs=jobs)),
            )
        except ValueError as error:
            return refuse(error)

    return run


@pytest.fixture
def studies(results) -> Callable[[], list[optuna.Study]]:
    """The studies in the results folder, by name."""

    def load() -> list[optuna.Study]:
        storage = open_storage(None, results)
        names = sorted(optuna.get_all_study_names(storage))
        return [optuna.load_study(study_name=name, storage=storage) for name in names]

    return load


@pytest.fixture
def rows(results: Path) -> Callable[[], pd.DataFrame]:
    """The runs table by run id."""
    return lambda: pd.read_parquet(results / "runs").set_index("run_id")
