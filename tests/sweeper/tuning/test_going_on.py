"""Killed and repeated, parallel, and stopped early: studies lose nothing and do nothing twice."""

import itertools
import subprocess
import sys
import time
from collections import Counter

import optuna
import pandas as pd
import pytest

from sweeper.axes import axes
from sweeper.compose import expand
from sweeper.domain.outcomes import Outcome
from sweeper.launch.events import End, Event
from sweeper.ledger import Ledger
from sweeper.tuning.design import Design
from sweeper.tuning.storage import open_storage
from sweeper.tuning.study import PointStudy
from sweeper.tuning.tuner import Tuner

LOSS = "hydra.sweeper.objectives=[val_loss]"
QUICK = [
    "+experiment=noisy_quadratic", "data.num_train_examples=1024", "data.length=8", "epochs=2",
    "batch=256,512", "base_lr=tag(log, interval(0.01, 1))", "warmup=tag(tune, choice(0, 1))",
]  # fmt: skip


def command(results, n_trials) -> list[str]:
    sampler = "hydra/sweeper/sampler=quasi_random"
    return [
        sys.executable, "-m", "sweeper", "-m", "hydra/sweeper=optuna", *QUICK, LOSS, sampler,
        f"n_trials={n_trials}", f"results={results}",
    ]  # fmt: skip


def trials(results) -> dict[str, list[tuple]]:
    storage = open_storage(None, results)
    return {
        name: [
            (trial.number, trial.state.name, trial.params, trial.value, trial.user_attrs["run_ids"])
            for trial in optuna.load_study(study_name=name, storage=storage).trials
        ]
        for name in optuna.get_all_study_names(storage)
    }


def test_studies_killed_and_repeated_are_as_undisturbed_ones(tmp_path):
    calm, stormy = tmp_path / "calm", tmp_path / "stormy"
    subprocess.run(command(calm, 3), check=True, capture_output=True, timeout=300)
    for num_rows in (1, 3):
        process = subprocess.Popen(command(stormy, 3), stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 120
        while len(list(stormy.glob("runs/*.parquet"))) < num_rows and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        assert process.poll() is None, "the command must be killed before its end"
        process.kill()
        process.wait()
    last = subprocess.run(
        command(stormy, 3), capture_output=True, check=False, text=True, timeout=300
    )

    assert last.returncode == 0, last.stdout + last.stderr
    assert trials(stormy) == trials(calm)
    assert all(len(found) == 3 for found in trials(stormy).values())
    finished = pd.read_parquet(stormy / "runs")
    assert list(finished.outcome) == ["finished"] * len(finished)
    assert sorted(finished.run_id) == sorted(pd.read_parquet(calm / "runs").run_id)


def test_parallel_trials_do_not_wait_for_each_other(tune, results, studies):
    """One long and several short trials on two places: the short ones pass the long one."""
    tune(
        "epochs=tag(tune, choice(400, 1))", "hydra/sweeper/sampler=grid", LOSS, "n_trials=2",
        "seed=0,1,2", jobs=2,
    )  # fmt: skip

    runs = pd.read_parquet(results / "runs").set_index(["epochs", "seed"])
    ends = runs.started_at + pd.to_timedelta(runs.wall_s, unit="s")
    first_long = runs.started_at[400].idxmin()
    later = runs.started_at[runs.started_at > runs.started_at[400, first_long]]
    assert (later < ends[400, first_long]).sum() >= 1
    assert [len(study.trials) for study in studies()] == [2, 2, 2]


@pytest.mark.parametrize(
    "pruner",
    [
        ["hydra/sweeper/pruner=median", "hydra.sweeper.pruner.n_startup_trials=1"],
        ["hydra/sweeper/pruner=successive_halving"],
        ["hydra/sweeper/pruner=hyperband"],
    ],
    ids=lambda words: words[0].partition("=")[2],
)
def test_a_trial_that_lags_is_stopped_and_stays_so(tune, studies, rows, pruner):
    """The trial at base_lr=0.001 trains too slowly to keep up with the one at 0.3."""
    words = [
        "base_lr=tag(tune, choice(0.3, 0.25, 0.2, 0.001))", "epochs=300", "n_trials=4", LOSS,
        "data.num_train_examples=256", "hydra/sweeper/sampler=grid", *pruner,
    ]  # fmt: skip
    code = tune(*words, jobs=1)
    last = studies()[0].trials[3]
    again = tune(*words, jobs=1)

    assert (code, again) == (0, 0)
    assert last.state.name == "PRUNED"
    assert last.user_attrs["outcome"] == "pruned"
    run = rows().loc[last.user_attrs["run_ids"][0]]
    assert run.outcome == "preempted"
    assert run.reason.startswith("pruned after epoch ")
    assert 0 < run.epochs_completed < 300
    assert run.attempt == 1
    assert studies()[0].trials[0].state.name == "COMPLETE"
    assert len(studies()[0].trials[0].intermediate_values) == 300


def test_failed_trials_are_queued_again_on_request(tune, studies, tmp_path):
    """The model fails while a file is missing."""
    words = [
        "model._target_=provoked.Needing", f"+model.path={tmp_path / 'needed'}",
        "~model.channels", "~model.hidden", "batch=7680",
        "epochs=1", "warmup=0", "base_lr=tag(log, interval(0.01, 1))", "n_trials=1",
    ]  # fmt: skip
    failed = tune(*words, quick=False)
    (tmp_path / "needed").touch()
    left = tune(*words, quick=False)
    repeated = tune(*words, "retry=failed", quick=False)

    first, second = studies()[0].trials
    assert (failed, left, repeated) == (1, 1, 0)
    assert (first.state.name, second.state.name) == ("FAIL", "COMPLETE")
    assert first.params == second.params


def test_a_place_that_takes_all_there_is_gets_no_more_trials_than_may_be_under_way(loader, results):
    """A launcher that does not run them: six tasks of two studies, then none until some end."""
    found = axes(QUICK, loader)
    settings = {
        "objectives": ["val_loss"], "constraints": None, "sampler_seed": 0,
        "sampler": {"_target_": "optuna.samplers.RandomSampler"},
        "pruner": {"_target_": "optuna.pruners.NopPruner"},
    }  # fmt: skip
    design, storage = Design.of(settings, found.space, []), open_storage(None, results)
    tuner = Tuner(
        studies=[PointStudy(" ".join(p), p, design, storage) for p in found.points()],
        n_trials=30, at_once=3, tries=1, ledger=Ledger(results),
        configs_of=lambda more: expand(loader, [*found.fixed, *more]),
        expect=lambda spec, status: None, say=lambda text: None,
    )  # fmt: skip
    tasks = tuner.tasks()

    first = list(itertools.islice(tasks, 7))
    assert [task is None for task in first] == [False] * 6 + [True]
    assert Counter(task.spec.config["batch"] for task in first[:6]) == {256: 3, 512: 3}

    failed = End(run_id=first[0].spec.run_id, outcome=Outcome.FAILED, reason="made up")
    tuner.take_in(Event(ended=[failed]))
    assert next(tasks).spec.config["batch"] == first[0].spec.config["batch"]
    assert next(tasks) is None
