"""What is guaranteed for a user's habit is the same on every layout, and in a plain Trainer."""

import random
import subprocess
from pathlib import Path

import pytest
from acceptance import accept
from habits import HABITS

WORDS = [
    "batch=16", "base_batch=16", "warmup=0", "epochs=2", "precision=64-true", "metric=val/loss",
    "metric_mode=min",
]  # fmt: skip
#: With draws, an order or counts of the run's, which a plain Trainer does not have.
OF_THE_RUN = {
    "rates by batches", "batch norm", "sync batch norm",
    "dropout layer", "feature dropout", "gradient noise", "random sampler", "weighted sampler",
    "sampler with replacement", "batch norm with a span",
}  # fmt: skip
#: Habits that are right, and are said to be.
RIGHT = {
    "plain", "by global step", "by epoch", "by the share of the training", "from the fifth step",
    "penalty", "gradient penalty", "dropout layer", "rate by global step", "layer norm", "adam",
    "teacher before each step", "gradient clipped before the step", "one cycle", "cosine by epoch",
    "every second step", "plateau of validation", "weighted sampler", "callback StepAverage",
    "callback Watches", "tied weights", "late layers",
}  # fmt: skip
#: What shards might lose: weights that two layers share, layers made late, statistics, draws.
ON_SHARDS = ["tied weights", "late layers", "batch norm with a span", "dropout layer", "adam"]
SHARE = 6  # the gate tries one habit in so many


def drawn():
    """A share of the table, by the commit."""
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, check=False
    ).stdout
    return sorted(random.Random(commit).sample(sorted(HABITS), len(HABITS) // SHARE))


def check(grid, names, *words):
    found = accept({name: grid(*HABITS[name], *WORDS, *words)[0] for name in names})

    wrong = {}
    for name, verdict in found.items():
        far = dict(verdict["far"])
        if "2 ranks" not in verdict["same"]:
            far.pop("ranks")
        if name in OF_THE_RUN:
            far.pop("plain")
        is_guaranteed = verdict["same"] and "fixed batchnorm" not in verdict["missing"]
        if is_guaranteed and not all(d is not None and d < 1e-7 for d in far.values()):
            wrong[name] = verdict
    assert wrong == {}
    refused = {n: v["message"] for n, v in found.items() if n in RIGHT and not v["same"]}
    assert refused == {}
    return found


def test_there_are_many():
    assert len(HABITS) >= 80
    assert {*HABITS} >= RIGHT | OF_THE_RUN


def test_a_share_of_the_habits_drawn_by_the_commit(grid):
    check(grid, drawn())


def test_some_habits_on_shards(grid):
    found = check(grid, ON_SHARDS, "strategy=fsdp")
    assert all("2 ranks" in verdict["same"] for verdict in found.values())


@pytest.mark.acceptance
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_all_habits(grid, strategy):
    check(grid, list(HABITS), f"strategy={strategy}")
