"""Every sampler goes on after an interruption as if there had been none."""

import math
import zlib

import optuna
import pytest
from omegaconf import OmegaConf
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState

from sweeper import CONFIG_FOLDER
from sweeper.tuning.point_study import PointStudy
from sweeper.tuning.samplers import value_at
from sweeper.tuning.storage import open_storage
from sweeper.tuning.study_settings import StudySettings, parse_objective

NUMBERS = {"base_lr": FloatDistribution(1e-3, 1, log=True), "warmup": IntDistribution(0, 20)}
CHOICES = {**NUMBERS, "lr_rule": CategoricalDistribution(("none", "linear", "sqrt"))}
SAMPLERS = {
    "tpe": ({"_target_": "optuna.samplers.TPESampler", "n_startup_trials": 3}, CHOICES),
    "gp": ({"_target_": "optuna.samplers.GPSampler", "n_startup_trials": 3}, CHOICES),
    "cmaes": ({"_target_": "optuna.samplers.CmaEsSampler", "n_startup_trials": 1}, NUMBERS),
    "quasi_random": ({"_target_": "sweeper.tuning.samplers.QuasiRandomSampler"}, CHOICES),
    "random": ({"_target_": "optuna.samplers.RandomSampler"}, CHOICES),
}


NO_PRUNER = {"_target_": "optuna.pruners.NopPruner"}


def open_study(folder, sampler, space, seed=0, pruner=NO_PRUNER) -> PointStudy:
    settings = StudySettings(
        space=space, objective=parse_objective("val_loss"), sampler=sampler,
        sampler_seed=seed, pruner=pruner,
    )  # fmt: skip
    return PointStudy("batch=256", ["batch=256"], settings, open_storage(folder))


def loss(trial) -> float:
    """Lowest at base_lr=0.1 and warmup=5; infinite, as if diverged, above base_lr=0.8."""
    rate, warmup = trial.params["base_lr"], trial.params["warmup"]
    return (math.log(rate / 0.1)) ** 2 + (warmup - 5) ** 2 / 25


def make_trials(study, count) -> None:
    for _ in range(count):
        tell(study, study.ask())


def tell(study, trial) -> None:
    outcome = "diverged" if trial.params["base_lr"] > 0.8 else "finished"
    study.tell(trial, {"outcome": outcome, "reason": "made up", "val_loss": loss(trial)})


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name == "gp" else ()) for name in SAMPLERS],
)
def test_a_study_cut_after_every_trial_chooses_as_one_that_was_not(tmp_path, name):
    sampler, space = SAMPLERS[name]
    whole = open_study(tmp_path / "whole", sampler, space)
    make_trials(whole, 8)
    for _ in range(8):
        make_trials(open_study(tmp_path / "cut", sampler, space), 1)

    cut = open_study(tmp_path / "cut", sampler, space)
    chosen = [trial.params for trial in whole.trials()]
    assert [trial.params for trial in cut.trials()] == chosen
    assert len({str(params) for params in chosen}) == 8
    assert [trial.number for trial in cut.trials()] == list(range(8))


def test_seeds_and_versions_that_chose_the_trials_are_recorded(tmp_path):
    """The seed of trial n is zlib.crc32 of the study's seed and n."""
    sampler, space = SAMPLERS["random"]
    study = open_study(tmp_path, sampler, space, seed=7)
    make_trials(study, 2)

    seeds = [trial.user_attrs["sampler_seed"] for trial in study.trials()]
    assert seeds == [zlib.crc32(b"7 0"), zlib.crc32(b"7 1")]
    assert study.optuna.user_attrs["versions"]["optuna"] == optuna.__version__
    again = optuna.samplers.RandomSampler(seed=seeds[1])
    drawn = optuna.create_study(sampler=again).ask({"base_lr": space["base_lr"]}).params
    assert drawn["base_lr"] == study.trials()[1].params["base_lr"]


@pytest.mark.parametrize("name", ["tpe", "gp", "cmaes", "quasi_random", "random"])
def test_another_seed_chooses_other_trials(tmp_path, name):
    sampler, space = SAMPLERS[name]
    first, second = (open_study(tmp_path / str(s), sampler, space, seed=s) for s in (0, 1))
    make_trials(first, 2)
    make_trials(second, 2)

    assert [t.params for t in first.trials()] != [t.params for t in second.trials()]


@pytest.mark.parametrize("params", [["base_lr", "warmup", "lr_rule"], ["base_lr"], []])
def test_a_trial_cut_off_before_it_had_all_parameters_keeps_its_number_and_gets_the_others(
    tmp_path, params
):
    sampler, space = SAMPLERS["quasi_random"]
    undisturbed = open_study(tmp_path / "undisturbed", sampler, space).ask()
    begun = open_study(tmp_path / "cut", sampler, space)
    begun.optuna.ask({key: space[key] for key in params})

    study = open_study(tmp_path / "cut", sampler, space)
    (frozen,) = study.trials(TrialState.RUNNING)
    resumed = study.ask(frozen.number)

    assert (resumed.number, resumed.params) == (0, undisturbed.params)
    assert len(study.trials()) == 1


@pytest.mark.parametrize("name", ["median", "hyperband", "successive_halving"])
def test_every_pruner_stops_some_of_ten_trials_each_worse_than_the_one_before(tmp_path, name):
    pruner = OmegaConf.load(CONFIG_FOLDER / f"hydra/sweeper/pruner/{name}.yaml")
    study = open_study(tmp_path, *SAMPLERS["random"], pruner=OmegaConf.to_container(pruner))
    stopped = []
    for badness in range(10):
        trial = study.ask()
        for number in range(1, 31):
            study.report(trial, badness + 1 / number, number)
            if study.should_prune(trial):
                stopped.append(badness)
                study.record_end(trial, TrialState.PRUNED, "pruned", "worse than others")
                break
        else:
            tell(study, trial)

    assert stopped
    assert 0 not in stopped


def test_quasi_random_points_fill_the_range_more_evenly_than_chance(tmp_path):
    """27 Halton points in base 2 and 3: each third of the second axis holds 9 of them."""
    sampler, _ = SAMPLERS["quasi_random"]
    space = {"base_lr": FloatDistribution(0, 1), "warmup": FloatDistribution(0, 3)}
    study = open_study(tmp_path, sampler, space)
    make_trials(study, 27)

    thirds = [int(trial.params["warmup"]) for trial in study.trials()]
    assert [thirds.count(third) for third in range(3)] == [9, 9, 9]


@pytest.mark.parametrize(
    ("distribution", "fraction", "value"),
    [
        (FloatDistribution(1e-4, 1, log=True), 0.5, 1e-2),
        (FloatDistribution(2, 4), 0.25, 2.5),
        (FloatDistribution(0, 0.75, step=0.25), 0.99, 0.75),
        (IntDistribution(0, 20), 0.0, 0),
        (IntDistribution(0, 20), 0.999, 20),
        (IntDistribution(1, 9, step=2), 0.5, 5),
        (CategoricalDistribution(("a", "b")), 0.5, "b"),
    ],
)
def test_values_at_fractions_of_a_distribution(distribution, fraction, value):
    assert value_at(distribution, fraction) == (
        value if isinstance(value, str) else pytest.approx(value)
    )


@pytest.mark.parametrize(
    ("value", "is_measured", "reason"),
    [
        (math.nan, True, "val_loss was not a number"),
        (None, False, "val_loss was not measured; choose another"),
    ],
)
def test_a_value_that_is_not_a_number_fails_its_trial_only(tmp_path, value, is_measured, reason):
    study = open_study(tmp_path, SAMPLERS["random"][0], CHOICES)

    found = study.tell(study.ask(), {"outcome": "finished", "reason": "", "val_loss": value})

    (trial,) = study.trials()
    assert found is is_measured
    assert (trial.state.name, trial.user_attrs["reason"]) == ("FAIL", reason)
