"""A study at each compared point: budgets, identity of runs, the result of each outcome."""

import math

from optuna.trial import TrialState

LOSS = "hydra.sweeper.objective=val_loss"
RATES = "base_lr=tag(log, interval(0.01, 1))"


def states(study) -> list[str]:
    return [trial.state.name for trial in study.trials]


def test_every_compared_point_has_its_own_study_with_the_same_budget(tune, studies, rows):
    code = tune("batch=256,512", RATES, "n_trials=3", LOSS)

    small, large = studies()
    assert code == 0
    assert small.user_attrs["point"] == ["batch=256"]
    assert large.user_attrs["point"] == ["batch=512"]
    assert states(small) == states(large) == ["COMPLETE"] * 3
    table = rows()
    for study, batch in ((small, 256), (large, 512)):
        for trial in study.trials:
            (run_id,) = trial.user_attrs["run_ids"]
            assert table.global_batch[run_id] == batch
            assert table.base_lr[run_id] == trial.params["base_lr"]
            assert table.val_loss[run_id] == trial.value
    assert len(table) == 6


def test_without_objectives_trials_are_judged_by_the_metric(tune, studies, rows):
    tune(RATES, "n_trials=1", "metric=train_loss", "metric_mode=min")

    (study,) = studies()
    (run_id,) = study.trials[0].user_attrs["run_ids"]
    assert study.direction.name == "MINIMIZE"
    assert study.trials[0].value == rows().train_loss[run_id] == rows().metric[run_id]


def test_a_study_goes_on_alone_with_more_trials_and_else_a_repeated_command_changes_nothing(
    tune, studies, rows
):
    tune("batch=256,512", RATES, "n_trials=1", LOSS)
    first = [study.trials[0].params for study in studies()]
    tune("batch=256", RATES, "n_trials=2", LOSS)
    tune("batch=256", RATES, "n_trials=2", LOSS)

    found = studies()
    assert [study.user_attrs["point"] for study in found] == [["batch=256"], ["batch=512"]]
    assert [[trial.number for trial in study.trials] for study in found] == [[0, 1], [0]]
    assert [study.trials[0].params for study in found] == first
    assert (rows().attempt == 1).all()


def test_a_run_in_the_ledger_gives_its_trial_a_result_and_is_not_trained_again(tune, studies, rows):
    tune(
        "base_lr=tag(tune, choice(0.1, 0.2))",
        "hydra/sweeper/sampler=quasi_random",
        "n_trials=2",
        LOSS,
    )
    again = (
        "hydra.sweeper.study_name=again",
        "hydra/sweeper/sampler=quasi_random",
        "n_trials=2",
        LOSS,
    )
    tune("base_lr=tag(tune, choice(0.1, 0.2))", *again)

    named, first = sorted(studies(), key=lambda study: not study.study_name.startswith("again"))
    assert [trial.value for trial in named.trials] == [trial.value for trial in first.trials]
    assert (rows().attempt == 1).all()
    assert len(rows()) == 2


def test_a_diverged_trial_is_a_bad_result_with_its_reason(tune, studies):
    code = tune("base_lr=tag(log, interval(1e20, 1e25))", "n_trials=1", LOSS)

    (trial,) = studies()[0].trials
    assert code == 0
    assert trial.state == TrialState.COMPLETE
    assert trial.value == math.inf
    assert trial.user_attrs["outcome"] == "diverged"
    assert "became non-finite" in trial.user_attrs["reason"]


def test_a_failing_run_is_retried_and_then_given_up(tune, studies, rows):
    model = "model._target_=provoked.Raising"
    code = tune(model, "batch=7680", "epochs=1", "warmup=0", RATES, "n_trials=2", quick=False)

    (study,) = studies()
    assert code == 1
    assert states(study) == ["FAIL", "FAIL"]
    assert list(rows().attempt) == [2, 2]
    assert study.trials[0].user_attrs["reason"].startswith("RuntimeError")


def test_an_objective_that_nobody_measures_ends_the_study_with_its_first_trial(
    tune, studies, rows, capsys
):
    code = tune(RATES, "n_trials=3", "hydra.sweeper.objective=val/mae min", jobs=1)

    (study,) = studies()
    assert code == 1
    assert states(study) == ["FAIL"]
    assert len(rows()) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "val/mae was not measured; choose another" in said
    assert "No further trials are started" in said
