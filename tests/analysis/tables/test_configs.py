"""The configs of many runs are read once for each that differs in more than the seed."""

import json

import pandas as pd
import pytest
from simulated_studies import simulated_curves, simulated_runs, with_settings

from analysis.decide.grid_ends import find_edges, propose_longer_grid
from analysis.report.estimates import estimate_all
from analysis.report.table import paper_table
from analysis.tables import comparable_runs
from analysis.tables.comparable_runs import group_comparable, select_runs_where, stored_configs
from analysis.tables.metric import Measured
from analysis.tables.settings import (
    comparable_settings,
    describe_choice,
    find_rate_key,
    group_settings,
)
from analysis.tables.validity import ARM, confounds


@pytest.fixture
def runs() -> pd.DataFrame:
    return simulated_runs([256, 512], [0, 5], 6, accuracy=lambda b, w: 0.8, noise=0.01)


def test_seeds_cost_no_more_configs_to_read(runs, monkeypatch):
    read = []
    loads = json.loads
    comparable_runs._parse.cache_clear()
    monkeypatch.setattr(
        comparable_runs.json, "loads", lambda text: read.append(text) or loads(text)
    )

    group_comparable(runs)
    first = len(read)
    stored_configs(runs)

    assert len({*read}) <= 5  # four points, and the first run's length
    assert len(read) == first


def test_a_seed_inside_a_group_is_a_setting(runs):
    each = [{"optimizer": {"name": "sgd", "seed": i % 2}} for i in range(len(runs))]

    groups = group_comparable(with_settings(runs, each))

    assert [len(group.runs) for group in groups] == [12, 12]
    assert groups[0].about.endswith("optimizer.seed=0")


def test_one_seed_is_held_fixed_and_several_are_not(runs):
    assert "seed=" not in paper_table(runs).settings
    assert "seed=3" in paper_table(runs[runs["seed"] == 3]).settings


#: A rate that was read off a module's steps, and the one that was meant.
READ, MEANT = 0.000999994177959839, 0.001


def test_rates_that_are_nearly_equal_are_one_setting(runs):
    is_small = runs["global_batch"] == 256
    rates = pd.Series(MEANT, runs.index).mask(is_small, READ)
    each = [{"base_lr": rate} for rate in rates]
    read = with_settings(runs, each).assign(base_lr=rates, peak_lr=rates)
    at_once = read.assign(bn_span=32, global_batch=256)

    assert [{*group.runs["peak_lr"]} for group in group_comparable(read)] == [{MEANT}]
    assert comparable_settings(read)[1] == ["warmup_epochs"]
    assert confounds(at_once.assign(bn_span=runs["global_batch"]), [*ARM]) == confounds(
        at_once.assign(bn_span=runs["global_batch"], base_lr=MEANT), [*ARM]
    )


def test_counts_that_differ_by_one_are_several_settings(runs):
    each = [{"model": {"_target_": "Simulated", "width": 2e6 + i % 2}} for i in range(len(runs))]

    assert len(group_comparable(with_settings(runs, each))) == 2


def test_rates_that_differ_by_a_hundredth_percent_are_several_settings(runs):
    each = [{"base_lr": 0.1 + 1e-5 * (i % 2)} for i in range(len(runs))]

    assert len(group_comparable(with_settings(runs, each))) == 2


def measured(runs: pd.DataFrame) -> Measured:
    return Measured(runs.assign(results="results"), simulated_curves(runs, 3))


def test_what_is_left_out_is_named_by_conditions_that_take_just_that(runs):
    other = with_settings(runs[:6], epochs=5, augment="crop").assign(data="Shapes", epochs=5)
    tagged = with_settings(runs[6:10], base_batch=64)
    both = measured(pd.concat([runs, other, tagged], ignore_index=True))

    group, _ = group_settings(both.runs)
    said = describe_choice(both, group)

    assert said.startswith("This is from 24 of 34 runs: Simulated, Simulated, 90 epochs. Left out")
    assert "6 runs (--where data=Shapes); 4 runs (--where base_batch=64)." in said
    assert len(select_runs_where(both.runs, ["data=Shapes"])) == 6
    assert len(select_runs_where(both.runs, ["augment=null"])) == 28
    assert describe_choice(measured(runs), group_settings(runs)[0]) == ""


def test_branches_are_left_to_their_own_command(runs):
    each = [{"branch": {"run": "p", "epochs": i % 3}} for i in range(24)]
    branches = with_settings(runs, each).assign(branch="p@1")
    parents = runs[:3]
    both = measured(pd.concat([parents, branches], ignore_index=True))

    group, _ = group_settings(both.runs_with_metric)

    assert len(both.runs_with_metric) == len(group.runs) == 3
    assert "24 branches (`sweeper analysis branches results` compares" in describe_choice(
        both, group
    )
    assert len(measured(branches).runs_with_metric) == 24


#: A rate of a module that anneals at each step, as its first step has it, and as it was typed.
OFF, TYPED = 0.999, {0.001: 0.0, 0.01: 0.02, 0.03: 0.03}


def of_module(runs: pd.DataFrame) -> pd.DataFrame:
    parts = [
        with_settings(runs, base_lr=None, module={"_target_": "my.Module", "lr": rate}).assign(
            base_lr=OFF * rate, peak_lr=OFF * rate, val_accuracy=runs["val_accuracy"] + gain
        )
        for rate, gain in TYPED.items()
    ]
    return pd.concat(parts, ignore_index=True)


def test_a_rate_of_a_module_is_one_setting_under_the_name_it_was_typed(runs):
    tuned, columns = comparable_settings(of_module(runs[runs["warmup_epochs"] == 0]))

    assert columns == ["peak_lr"]
    assert find_rate_key(tuned) == "module.lr"
    assert sorted(set(tuned["base_lr"])) == [*TYPED]


def test_the_best_rate_of_a_module_is_at_the_end_that_rises(runs):
    """Accuracy rises with the rate at both batches: the best is not the smallest."""
    given = measured(of_module(runs[runs["warmup_epochs"] == 0]))

    first, *_ = answers = estimate_all(given, draws=50)
    (rate,) = [answer for answer in answers if answer.name == "best_rate_exponent"]
    edges = find_edges(given)

    assert "module.lr 0.03, the highest tried)" in first.words
    assert "base_lr" not in first.words
    assert "best_lr_exponent" not in [answer.name for answer in answers]
    assert (rate.table["best"] > 0.01).all()
    assert (rate.table["low"] <= rate.table["best"]).all()
    assert {(e.key, e.is_upper, tuple(e.arms)) for e in edges if e.key != "batch"} == {
        ("module.lr", True, tuple(OFF * rate for rate in TYPED))
    }
    proposed = propose_longer_grid([e for e in edges if e.key != "batch"])
    assert "module.lr=0.09,0.27" in proposed.why
