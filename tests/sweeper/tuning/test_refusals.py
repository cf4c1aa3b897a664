"""What cannot be tuned is refused before anything starts, in a sentence."""

import math

import pytest

from sweeper.commands.tuning_overrides import sort_overrides
from sweeper.tuning.storage import open_storage
from sweeper.tuning.study_settings import parse_objective

LOSS = "hydra.sweeper.objective=val_loss"
RATES = "base_lr=tag(log, interval(0.01, 1))"


def test_whole_numbers_stay_whole_and_ranges_exclude_their_stop(loader):
    space = sort_overrides(
        ["warmup=tag(tune, range(0, 21))", "seed=int(interval(1, 4))"], loader
    ).space

    assert (space["warmup"].low, space["warmup"].high, space["warmup"].step) == (0, 20, 1)
    assert (space["seed"].low, space["seed"].high) == (1, 4)
    assert {type(dist).__name__ for dist in space.values()} == {"IntDistribution"}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["warmup=tag(tune, range(0, 9))"],
         "both ends of every tuned range must give a valid run. warmup must be shorter than the "
         "training; got warmup=8 of epochs=1. Train longer or warm up for fewer epochs."),
        ([RATES, "n_trials=0"],
         "n_trials must be a whole number, 1 or more; got n_trials=0."),
        (["base_lrr=interval(0.1, 1)"],
         "both ends of every tuned range must give a valid run. base_lrr must be a config key; "
         "got base_lrr=0.1. Did you mean base_lr?"),
    ],
)  # fmt: skip
def test_studies_that_cannot_be(tune, capsys, results, words, sentence):
    code = tune(*words, LOSS)

    assert code == 2
    assert capsys.readouterr().err == f"Nothing was started.\n{sentence}\n"
    assert not (results / "tuning.journal").exists()


def test_the_objective_is_the_metric_or_a_logged_name_with_a_direction():
    def known(text, *metric):
        found = parse_objective(text, *metric)
        return found.column, found.mode, found.worst

    error = ("val/rmse", "min", math.inf)
    assert known(None, "val/rmse", "min") == known("val/rmse min") == error
    assert known("val/loss") == ("val/loss", "min", math.inf)
    assert known("val/r2 max") == ("val/r2", "max", -math.inf)
    assert known(None) == known("val_accuracy") == ("val_accuracy", "max", 0.0)
    again = [parse_objective(text).spelled for text in ("val/loss", "val/r2 max", "val_loss")]
    assert again == ["val/loss min", "val/r2 max", "val_loss"]


@pytest.mark.parametrize("text", ["accuracy", "val/mae", "train_s", "best_val_loss", "wall_s min"])
def test_an_objective_of_unknown_direction_or_without_a_curve(text):
    with pytest.raises(ValueError, match="objective must be a column among"):
        parse_objective(text)


def test_a_key_that_is_added_is_tuned_under_its_name(loader):
    found = sort_overrides(["+module.lr=tag(log, interval(1e-3, 1e-1))"], loader)

    assert list(found.space) == ["module.lr"]
    assert found.fixed == ["+module.lr=0.001"]


def test_a_line_that_a_killed_writer_left_unfinished_is_cut_off(results):
    open_storage(results).create_new_study([1], "first")
    journal = results / "tuning.journal"
    with journal.open("ab") as file:
        file.write(b'{"op_code": 4, "worker_')

    reopened = open_storage(results)
    reopened.create_new_study([1], "second")

    names = {study.study_name for study in open_storage(results).get_all_studies()}
    assert names == {"first", "second"}


def test_a_study_whose_space_or_sampler_has_changed(tune, capsys):
    tune(RATES, "n_trials=1", LOSS)
    capsys.readouterr()
    code = tune("base_lr=tag(log, interval(0.01, 2))", "n_trials=1", LOSS)

    sentences = capsys.readouterr().err
    assert code == 2
    assert "the search space must be the same as when study" in sentences
    assert "FloatDistribution(high=1.0, log=True, low=0.01, step=None)" in sentences
    assert "create another study with hydra.sweeper.study_name=NAME" in sentences

    assert tune(RATES, "n_trials=1", LOSS, "hydra/sweeper/sampler=random") == 2
    assert "hydra/sweeper/sampler must be the same as when study" in capsys.readouterr().err
