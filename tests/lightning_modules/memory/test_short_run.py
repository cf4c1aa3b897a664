"""What would fail a run at once is found in a few steps, with the line of whoever wrote it."""

from pathlib import Path

import pytest

from lightning_modules.memory.short_run import find_error
from sweeper.commands.user_facts import fill_config
from sweeper.spec.config import run_config

STRANGERS = Path(__file__).parents[2] / "users.py"
ON_DIGITS = ["module._target_=users.DigitsModule", "metric=val/ce"]
OWN = ["data=own", "data._target_=users.DataModule", "+data.num_train_examples=96"]


@pytest.fixture
def failure(grid):
    """Why the first steps of a run fail, for a batch that is not trained here."""

    def of(*words, is_automatic=True):
        (config,) = grid("module=own", "metric_mode=min", "batch=32", "base_batch=32", *words)
        facts = {"has_batchnorm": False, "is_automatic": is_automatic, "found": {}}
        return find_error(run_config(fill_config(config, facts)))

    return of


@pytest.mark.parametrize(
    ("word", "said", "line"),
    [
        ("+module.width=100", "RuntimeError: mat1 and mat2 shapes", "logits = self.head("),
        ("+module.evaluates=false", "AssertionError, in", "assert self.evaluates"),
    ],
)
def test_an_error_of_a_step_or_of_the_evaluation_is_told_with_its_line(failure, word, said, line):
    why = failure(*ON_DIGITS, word)

    number = 1 + next(
        i for i, text in enumerate(STRANGERS.read_text().splitlines()) if line in text
    )
    assert why.startswith(said)
    assert why.endswith(f", in {STRANGERS}, line {number}")


def test_a_metric_that_is_never_logged_is_told_with_the_names_that_are(failure):
    why = failure(*ON_DIGITS, "metric=val/accuracy")

    assert "metric must be a name that the module logs; got metric=val/accuracy, it logged" in why
    assert "train_loss, val/ce." in why


@pytest.mark.parametrize(
    ("words", "is_automatic"),
    [
        ([*ON_DIGITS, "batch=4096"], True),
        (["module._target_=users.Module", "metric=val/mse/dataloader_idx_0", *OWN], True),
        (
            [
                "module._target_=counting_users.LongModule",
                "metric=val/mse/dataloader_idx_0",
                "epochs=12",
                *OWN,
            ],
            True,
        ),
        (["module._target_=users.Gan", "metric=val/score/dataloader_idx_0", *OWN], False),
    ],
)
def test_nothing_is_told_of_a_module_that_trains(failure, words, is_automatic):
    assert failure(*words, is_automatic=is_automatic) == ""
