"""Laws across sizes from anyone's table: simulated ones, and published ones by definition."""

import json
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from simulated_studies import simulated_curves, simulated_runs, with_settings
from simulated_tables import (
    BATCH,
    DATA,
    KINDS,
    SIZE,
    TRUTH,
    Table,
    claims,
    covers,
    flat,
    shuffled,
)

from analysis.figures.draw import draw_all
from analysis.report.any_runs import judge_lengths, judge_table
from analysis.stats.size_laws import find_bests
from analysis.tables.metric import Measured

#: Steps to a target at batches 64 to 16,384 by the size (Zhang et al. 2024, MIT).
ZHANG = Path(__file__).parents[3] / "docs/results/atlas/zhang2024.csv"


def by_name(answers):
    return {answer.name: answer for answer in answers}


def test_zhangs_exponent_is_found_by_its_definition_and_the_others_are_said_to_differ():
    """Values computed elsewhere from the notebook's own formulas."""
    (answer,) = judge_table(ZHANG)

    found = answer.settings["by_definition"]
    published = found["20 % over batch 256"]
    assert published[0] == pytest.approx(0.468, abs=0.0005)
    assert published[2] - published[0] == pytest.approx(0.038, abs=0.001)
    assert found["E_min/S_min"][0] == pytest.approx(0.619, abs=0.005)
    assert answer.table["20 % over batch 256"].tolist() == pytest.approx(
        [745, 955, 1394, 1889, 2533], rel=0.001
    )
    assert answer.table["E_min/S_min"].tolist() == pytest.approx(
        [2201, 3254, 5414, 7873, 11095], rel=0.001
    )
    assert "The definitions disagree" in answer.words


def test_the_surfaces_of_step_law_have_the_exponents_that_were_computed_elsewhere():
    """Its table has no licence: SWEEPER_STEP_LAW is the path of dense_lr_bs_loss.csv."""
    if not (path := os.environ.get("SWEEPER_STEP_LAW")):
        pytest.skip("SWEEPER_STEP_LAW names no table")
    columns = "batch=bs lr=lr loss='smooth loss' size=N data=D"
    found = by_name(judge_table(Path(path), columns, "batch=2048tokens"))
    data, size = found["best_batch_data_exponent"], found["best_batch_size_exponent"]

    assert data.low <= 0.571 <= data.high
    assert data.settings["by_window"]["1 %"][0] == pytest.approx(0.628, abs=0.001)
    assert data.settings["by_window"]["2 %"][0] == pytest.approx(0.595, abs=0.001)
    assert size.settings["by_window"]["1 %"][0] == pytest.approx(-0.345, abs=0.001)
    assert size.settings["by_window"]["4 %"][0] == pytest.approx(-0.112, abs=0.001)


def test_a_simulated_law_is_found_and_the_command_prints_it(command, tmp_path):
    path = tmp_path / "table.csv"
    table = Table(noise=0.001)
    table.draw(np.random.default_rng(5)).to_csv(path, index=False)

    printed = by_name_json(command("analysis", path, "--json").stdout)
    said = command("analysis", path).stdout

    for name, truth in TRUTH.items():
        assert printed[f"{name}_exponent"]["value"] == pytest.approx(truth, abs=0.03)
        assert printed[f"{name}_exponent"]["low"] <= truth <= printed[f"{name}_exponent"]["high"]
    assert "12 values of size and data" in said
    assert "How does the best rate grow with the data?" in said


def by_name_json(text):
    return {answer["question"]: answer for answer in json.loads(text)}


def test_a_valley_has_no_hyperbola_and_doubles_from_its_floor_on():
    batches = 2.0 ** np.arange(5, 13)
    examples = 1e6 * (1 + batches / 1000 + (100 / batches) ** 1.5)
    frame = pd.DataFrame({"batch": batches, "examples": examples, "seed": 0})

    found = by_name(judge_table(frame))

    assert not found["critical_batch"].has_answer
    assert "got a valley, with fewest at batch 256" in found["critical_batch"].words
    assert found["doubling_batch"].settings["definition"].endswith("smallest batch, 256")
    assert found["doubling_batch"].low <= 1760 <= found["doubling_batch"].high


def test_one_size_is_answered_by_the_estimators_of_folders():
    frame = Table(noise=0.001).draw(np.random.default_rng(1))
    one = frame[frame["size"] == 4e8]
    one = one[one["data"] == one["data"].unique()[1]].drop(columns=["size", "data"])

    found = by_name(judge_table(one))

    exponent = found["best_rate_exponent"]
    assert exponent.low <= TRUTH["best_rate_batch"] <= exponent.high
    assert found["best_batch"].words.startswith("Use ")


def test_a_table_of_which_no_setting_matters_has_no_law():
    rng = np.random.default_rng(2)
    tables = [shuffled(rng, "loss"), shuffled(rng, "loss"), Table(flat, noise=0.01).draw(rng)]

    for table in tables:
        found = by_name(judge_table(table))
        words = [found[f"{name}_exponent"].words for name in TRUTH]
        assert {text[:60] for text in words} == {
            "Not answered: in these runs the metric depends on neither ba"
        }


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_intervals_of_laws_hold(kind):
    rng = np.random.default_rng(3)

    held = [covers(KINDS[kind], rng)[0] for _ in range(60)]

    answered = np.array([each for each in held if each])
    assert len(answered) >= 0.9 * len(held)
    assert answered.mean() >= 0.93


@pytest.mark.slow
@pytest.mark.parametrize("what", ["loss", "cells"])
def test_shuffled_tables_seldom_have_a_law(what):
    """How the rate moves with the batch does not depend on which size a run has."""
    rng = np.random.default_rng(4)

    said = np.array([claims(shuffled(rng, what)) for _ in range(100)])

    assert said[:, : 5 if what == "loss" else 4].any(axis=1).mean() <= 0.1
    assert said[:, : 5 if what == "loss" else 4].mean() <= 0.05


def test_own_best_batches_are_drawn_beside_those_of_public_tables(command, tmp_path):
    """The best batch in the figure is that of the simulated law, in tokens."""
    mine, out = tmp_path / "mine.csv", tmp_path / "out"
    Table(noise=0.001).draw(np.random.default_rng(5)).to_csv(mine, index=False)

    said = command("analysis", "--beside", mine, "--units", "batch=1024tokens", "--out", out)
    refused = command("analysis", "--beside", mine, "--out", out)

    assert "best_batch_beside" in said.stdout
    drawn = pd.read_csv(out / "best_batch_beside.csv")
    own = drawn[drawn["source"] == "mine.csv"]
    truth = 1024 * BATCH * (own["data"] / DATA) ** 0.6 * (own["size"] / SIZE) ** -0.3
    assert own["batch"].to_numpy() == pytest.approx(truth.to_numpy(), rel=0.15)
    assert "must have a loss, and batches and data in tokens" in refused.stdout


def test_a_table_of_one_run_says_what_is_missing():
    (answer,) = judge_table(pd.DataFrame({"batch": [64.0], "loss": [2.0]}))

    assert answer.words == "Not run: two or more batches whose runs all finished are needed."


def train_lengths(lengths, power):
    """Runs of several lengths, whose best batch grows with a power of the length."""
    batches, frames = (64, 128, 256, 512, 1024, 2048), []
    rng = np.random.default_rng(0)
    for length in lengths:
        best = 400 * (length / 16) ** power

        def accuracy(batch, _, best=best):
            return 0.8 - 0.01 * np.log(batch / best) ** 2 - 0.002 * np.log(batch / best) ** 3

        made = simulated_runs(
            batches, [0], 2, accuracy=accuracy, noise=0.0005, rng=rng, epochs=length, rules=["none"]
        )
        frames.append(with_settings(made, epochs=length))
    runs = pd.concat(frames, ignore_index=True)
    return runs.assign(run_id=[f"{i:012x}" for i in range(len(runs))])


def test_runs_of_several_lengths_tell_how_the_best_batch_grows_with_the_data(tmp_path):
    runs = train_lengths((4, 8, 16, 32), 0.5)

    found = by_name(judge_lengths(Measured(runs, pd.DataFrame())))
    first, *_ = draw_all(Measured(runs, simulated_curves(runs, 4)), tmp_path, most=2)

    law = found["best_batch_data_exponent"]
    assert law.low <= 0.5 <= law.high
    assert law.high - law.low < 0.3
    assert law.settings["units"] == {"batch": "examples", "data": "examples"}
    drawn = pd.read_csv(tmp_path / "accuracy_vs_length.csv")
    assert first.name == "accuracy_vs_length.png"
    assert drawn["data_seen"].unique().tolist() == [n * 1_281_167 for n in (4, 8, 16, 32)]
    bests = pd.read_csv(tmp_path / "accuracy_best_batches.csv")
    assert bests[bests.seed.isna()].global_batch.tolist() == [256, 256, 512, 512]
    assert [*judge_lengths(Measured(train_lengths((4, 8), 0.5), pd.DataFrame()))] == []


def test_the_best_is_sought_by_the_means_of_seeds_and_not_by_the_lucky_ones():
    """Batches and rates in factors of 2; the noise of a seed is several times what a step costs."""
    rng, at = np.random.default_rng(0), np.arange(5)
    batch, rate, seed = (grid.ravel() for grid in np.meshgrid(at, at, np.arange(8)))
    cost = 0.02 * (batch - 1.7) ** 2 + 0.02 * (rate - 2.2) ** 2
    losses = 2 + cost + rng.normal(0, 0.03, len(cost))
    runs = pd.DataFrame(
        {"global_batch": 2.0**batch, "peak_lr": 2.0**rate, "data_seen": 1.0, "seed": seed}
    ).assign(behind=losses / losses.min() - 1)

    bests, left_out, _ = find_bests(runs, ["data_seen"], ["global_batch", "peak_lr"], 0.005)

    assert left_out == []
    assert np.log2(bests.global_batch[0]) == pytest.approx(1.7, abs=0.3)
    assert np.log2(bests.peak_lr[0]) == pytest.approx(2.2, abs=0.3)
