"""The configs of many runs are read once for each that differs in more than the seed."""

import json

import pandas as pd
import pytest
from simulated_studies import simulated_runs, with_settings

from analysis.report.table import paper_table
from analysis.tables import comparable_runs
from analysis.tables.comparable_runs import group_comparable, stored_configs
from analysis.tables.settings import comparable_settings
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
