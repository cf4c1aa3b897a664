"""Commands made from the settings of runs train just these runs."""

import shlex

import pytest

from analysis.decide.command import sweep_commands
from sweeper import CONFIG_FOLDER
from sweeper.commands.overrides import add_own_classes, expand, merge_preset, preset_overrides
from sweeper.spec.identity import run_id


def trained(loader, found: list[str]) -> list[str]:
    """The identities of all runs of these commands."""
    words = [shlex.split(line) for line in found]
    assert all(line[:4] == ["python", "-m", "sweeper", "-m"] for line in words)
    return [run_id(config) for line in words for config in points(loader, line[4:])]


def points(loader, words: list[str]):
    """As a sweep: presets' own lists give way to what is on the command line."""
    return expand(loader, merge_preset(preset_overrides(loader, words), words))


def test_the_words_for_a_grid_are_the_grid(grid, loader):
    words = ["base_lr=0.1", "batch=3840,7680", "warmup=0,5", "seed=0,1"]
    configs = grid(*words, "lr_rule=sqrt")

    (found,) = sweep_commands(configs, "my results")

    assert shlex.split(found)[4:] == [
        "lr_rule=sqrt", "micro_batch_limit=3840", *words, 'results="my results"'
    ]  # fmt: skip
    assert sorted(trained(loader, [found])) == sorted(map(run_id, configs))
    assert {c["results"] for c in points(loader, shlex.split(found)[4:])} == {"my results"}


def test_runs_that_are_no_grid_take_several_commands_and_no_run_more(grid, loader):
    configs = [
        *grid("batch=3840", "warmup=0,5", "seed=0,1"),
        *grid("batch=7680", "warmup=5", "seed=3"),
        *grid("batch=7680", "lr_rule=power", "lr_rule.exponent=0.6,0.7", "seed=3"),
    ]

    found = sweep_commands(configs, "results")

    assert len(found) == 4
    assert sorted(trained(loader, found)) == sorted(map(run_id, configs))


@pytest.mark.parametrize(
    "words",
    [
        ["tags=5", "twin_of='A, b (c): \"d\" it\\'s {e}'", "gradient_clip=1e-05"],
        ["~optimizer.name", "optimizer.nesterov=true", "+optimizer.dampening=0.1"],
        ["+trainer.detect_anomaly=true", "+trainer.limit_val_batches=3", "devices=2"],
        ["model.channels=[8,16]", "schedule=cosine", "ema_decay=0.99", "precision=64-true"],
        ["module=own", "data=own", "module._target_=a.M", "data._target_=b.D", "+data.x={k:[1,c]}"],
        ["perturbation=sam", "comm_hook=powersgd", "comm_hook.rank=3", "optimizer=adamw"],
        ["optimizer=muon", "base_lr=0.025"],
        ["metric=val/f1", "metric_mode=max", "loss_ceiling=20", "seed=range(0,30)"],
    ],
)
def test_any_setting_comes_back(words, loader):
    configs = list(points(loader, words))

    found = sweep_commands(configs, "results")

    again = [c for line in found for c in points(loader, add_own_classes(shlex.split(line)[4:]))]
    assert len(found) == 1
    assert again == configs


def test_what_was_filled_in_is_no_word(grid):
    configs = grid("batch=3840", "seed=0,1")
    filled = {
        "predicted": {"s": 2.0, "least_s": 1.0, "most_s": 3.0}, "predicted_memory_gib": 0.9,
        "guarantees": ["seeds apply"], "data_order": "counted", "hardware": {"gpus_per_node": 8},
        "price": "EUR:2", "energy_price": "EUR:0.3", "pue": 1.2,
    }  # fmt: skip

    found = sweep_commands([{**configs[0], **filled}, configs[1]], "results")

    assert found == sweep_commands(configs, "results")


@pytest.mark.slow
@pytest.mark.parametrize("group", ["experiment", "recipe"])
def test_every_preset_comes_back(group, loader):
    for name in sorted(path.stem for path in (CONFIG_FOLDER / group).glob("*.yaml")):
        configs = list(points(loader, [f"+{group}={name}"]))

        found = sweep_commands(configs[:20], "results")

        assert sorted(trained(loader, found)) == sorted(map(run_id, configs[:20]))
