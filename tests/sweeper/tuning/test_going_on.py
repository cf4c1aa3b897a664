"""Trials in parallel, pruned, retried; killed ones are in test_killed.py."""

import itertools
from collections import Counter
from types import SimpleNamespace

import pandas as pd
import pytest

from sweeper.commands import tune as tune_module
from sweeper.commands.overrides import expand
from sweeper.commands.tuning_overrides import sort_overrides
from sweeper.planning.plan import Event
from sweeper.spec.outcomes import Outcome
from sweeper.store.attempt import End
from sweeper.store.ledger import Ledger
from sweeper.tuning.point_study import PointStudy
from sweeper.tuning.storage import open_storage
from sweeper.tuning.study_settings import StudySettings, parse_objective
from sweeper.tuning.tuner import Tuner

RATES = "base_lr=tag(log, interval(0.01, 1))"
LOSS = "hydra.sweeper.objective=val_loss"
QUICK = [
    "+experiment=noisy_quadratic", "data.num_train_examples=1024", "data.length=8", "epochs=2",
    "batch=256,512", "base_lr=tag(log, interval(0.01, 1))", "warmup=tag(tune, choice(0, 1))",
]  # fmt: skip


@pytest.mark.slow
def test_parallel_trials_do_not_wait_for_each_other(tune, results, studies):
    """On two places, the first long trial goes on only when a third trial has begun meanwhile."""
    begun = f"{{_target_: patient.UntilThirdRun, results: {results}}}"
    code = tune(
        "epochs=tag(tune, choice(1, 2))", "hydra/sweeper/sampler=quasi_random", LOSS, "n_trials=2",
        "seed=0,1,2", f"+trainer.callbacks=[{begun}]", jobs=2,
    )  # fmt: skip

    runs = pd.read_parquet(results / "runs")
    assert code == 0
    assert sorted(runs.epochs) == [1, 1, 1, 2, 2, 2]
    assert set(runs.outcome) == {"finished"}
    assert [len(study.trials) for study in studies()] == [2, 2, 2]


def test_a_pruned_trial_stays_pruned_and_in_the_table(tune, studies, rows, capsys):
    """The trial at base_lr=0.001 is worse than the one at 0.3, and begins no fourth epoch."""
    words = [
        "base_lr=tag(tune, choice(0.001, 0.3))", "epochs=5", "n_trials=2", LOSS,
        "data.num_train_examples=256", "hydra/sweeper/sampler=quasi_random",
        "hydra/sweeper/pruner=median", "hydra.sweeper.pruner.n_startup_trials=1",
        "+trainer.callbacks=[{_target_: patient.UntilEnded, below_lr: 0.01, after_epochs: 3}]",
    ]  # fmt: skip
    code = tune(*words, jobs=1)
    first, last = studies()[0].trials
    capsys.readouterr()
    again = tune(*words, jobs=1)
    table = capsys.readouterr().out.partition("Runs\n")[2].splitlines()

    assert (code, again) == (0, 0)
    assert first.state.name == "COMPLETE"
    assert len(first.intermediate_values) == 5
    assert last.state.name == "PRUNED"
    assert {tuple(line.split()[:2]) for line in table[2:4]} == {
        ("0.3", "finished"),
        ("0.001", "preempted"),
    }
    assert last.user_attrs["outcome"] == "pruned"
    run = rows().loc[last.user_attrs["run_ids"][0]]
    assert run.outcome == "preempted"
    assert run.reason.startswith("pruned after ")
    assert 0 < run.epochs_completed <= 3
    assert run.attempt == 1


@pytest.mark.slow
def test_failed_trials_are_queued_again_on_request(tune, studies, tmp_path):
    """The model fails while a file is missing."""
    words = [
        "model._target_=provoked.Needing", f"+model.path={tmp_path / 'needed'}", "batch=7680",
        "epochs=1", "warmup=0", "base_lr=tag(log, interval(0.01, 1))", "n_trials=1", "trial=false",
    ]  # fmt: skip
    failed = tune(*words, quick=False)
    (tmp_path / "needed").touch()
    left = tune(*words, quick=False)
    repeated = tune(*words, "retry=failed", quick=False)

    first, second = studies()[0].trials
    assert (failed, left, repeated) == (1, 1, 0)
    assert (first.state.name, second.state.name) == ("FAIL", "COMPLETE")
    assert first.params == second.params


def test_a_launcher_that_takes_every_task_gets_no_more_trials_than_may_run_at_a_time(
    loader, results
):
    """A launcher that does not run them: six tasks of two studies, then none until some end."""
    found = sort_overrides(QUICK, loader)
    settings = StudySettings(
        space=found.space, objective=parse_objective("val_loss"), sampler_seed=0,
        sampler={"_target_": "optuna.samplers.RandomSampler"},
        pruner={"_target_": "optuna.pruners.NopPruner"},
    )  # fmt: skip
    storage = open_storage(results)
    tuner = Tuner(
        studies=[PointStudy(" ".join(p), p, settings, storage) for p in found.points],
        n_trials=30, max_concurrent=3, max_attempts=1, code=None, ledger=Ledger(results),
        configs_of=lambda more: expand(loader, [*found.fixed, *more]),
        expect=lambda spec, status: None, say=lambda text: None,
    )  # fmt: skip
    tasks = tuner.claim_tasks()

    first = list(itertools.islice(tasks, 7))
    assert [task is None for task in first] == [False] * 6 + [True]
    assert Counter(task.spec.config.batch for task in first[:6]) == {256: 3, 512: 3}

    failed = {first[0].spec.run_id: End(outcome=Outcome.FAILED, reason="made up")}
    tuner.handle(Event(ended=failed))
    assert next(tasks).spec.config.batch == first[0].spec.config.batch
    assert next(tasks) is None


def test_a_trial_that_ctrl_c_stops_has_not_failed(results):
    """What its runs ended with is not the study's to hear: it would count as an attempt."""
    handled = []
    ended = {"a run": End(outcome=Outcome.PREEMPTED, reason="stopped after epoch 1")}
    tuner = SimpleNamespace(
        studies=[], n_trials=1, ledger=Ledger(results), claim_tasks=list, handle=handled.append
    )
    table = SimpleNamespace(say=lambda _: None, update=lambda _: None)

    def launch(tasks, ledger):
        del tasks, ledger
        yield Event(ended=ended)
        yield Event(ended=ended, is_stopping=True)

    tune_module._run_trials(tuner, launch, table, None)

    assert handled == [Event(ended=ended)]
