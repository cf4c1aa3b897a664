"""Which batch to train with: what is said, and how often it is wrong in simulated studies."""

import numpy as np
import pandas as pd
import pytest
from simulated_studies import simulated_curves, simulated_runs, write_results

from analysis.cli import main
from analysis.report.which_batch import advise_batch, compare_batches
from analysis.tables.metric import ACCURACY

BATCHES, WARMUPS = (30, 60, 120), (0, 1, 5)


def study(seeds, law, noise=0.002, seed=4):
    rng = np.random.default_rng(seed)
    runs = simulated_runs(BATCHES, WARMUPS, seeds, accuracy=law, noise=noise, rng=rng, epochs=20)
    return runs.assign(examples_per_s=1000.0 * runs["global_batch"])


def said(runs):
    return advise_batch(runs, ACCURACY)[0]


def test_the_fastest_batch_that_loses_little_is_named_with_what_is_not_excluded():
    words = said(study(3, lambda b, w: 0.9 + 0.01 * (w == 5)))

    assert words.startswith("Use 120 (warmup 5 epochs): its mean is ")
    assert "no batch is shown to lose more than 0.5 points" in words
    assert "an epoch is 4 times faster than at 30" in words
    assert "3 seeds cannot exclude a loss of up to " in words


def test_a_batch_that_is_shown_to_be_worse_is_named_and_not_advised():
    words = said(study(5, lambda b, w: 0.9 - 0.05 * (b == 120)))

    assert words.startswith("Use 60 ")
    assert "; 120 is shown to lose more than 0.5 points; " in words


def test_each_batch_is_judged_at_its_best_rate():
    """At the lower rate 120 is best, but 60 at the higher rate beats it."""
    low = study(3, lambda b, w: 0.5 + 0.001 * b).assign(base_lr=0.1)
    high = study(3, lambda b, w: 0.9 - 0.4 * (b == 120), seed=5).assign(base_lr=0.3)

    words, table = advise_batch(pd.concat([low, high], ignore_index=True), ACCURACY)

    assert words.startswith("Use 60 (warmup ")
    assert ", base_lr 0.3): " in words
    assert list(table["base_lr"]) == [0.3, 0.3, 0.1]


def test_of_batches_that_are_equally_good_a_slower_one_is_not_advised():
    runs = study(3, lambda b, w: 0.9, noise=0.0001)
    slow = runs["global_batch"].map({30: 10.0, 60: 20.0, 120: 5.0})

    words = said(runs.assign(examples_per_s=slow))

    assert words.startswith("Use 60 ")
    assert "120 would do as well, but no faster" in words


def test_one_seed_is_said_to_exclude_nothing_and_a_diverged_setting_is_not_advised():
    runs = study(1, lambda b, w: 0.9)
    runs.loc[runs["global_batch"] == 120, "outcome"] = "diverged"

    words = said(runs)

    assert "1 seed cannot exclude any loss" in words
    assert words.endswith("Left out, as no setting has only runs that finished: 120.")


@pytest.mark.parametrize("lost", [0.0, 0.004])
@pytest.mark.parametrize("seeds", [3, 5])
def test_a_loss_is_seldom_larger_than_said_and_no_batch_is_wrongly_said_to_lose(seeds, lost):
    """Noise of 0.3 points; the best warmup of each batch is chosen from the same seeds."""
    runs, rng, studies = study(seeds, lambda b, w: 0.9), np.random.default_rng(1), 150
    num_wrong, law = np.zeros(2), 0.9 - lost * (runs["global_batch"] == 120)
    for _ in range(studies):
        values = law + 0.003 * rng.standard_normal(len(runs))
        found = compare_batches(runs.assign(val_accuracy=values), ACCURACY)
        truth = lost * (found["global_batch"] == 120)
        num_wrong += (found["at_most"] < truth).any(), (found["at_least"] > truth).any()

    assert num_wrong.max() / studies < 0.05


def test_it_is_the_first_answer_of_estimates_and_that_of_a_folder_without_a_command(
    tmp_path, monkeypatch, capsys
):
    runs = study(2, lambda b, w: 0.9)
    write_results(tmp_path / "results", runs, simulated_curves(runs, 5))
    monkeypatch.chdir(tmp_path)
    lines = {}

    for words in (["estimates"], ["batch"], ["results"], []):
        assert main(words) == 0
        lines[" ".join(words)] = capsys.readouterr().out.splitlines()[:2]

    assert lines["estimates"][0] == "Which batch should I train with?"
    assert lines["estimates"][1].startswith("  Use 120 ")
    assert len({str(first) for first in lines.values()}) == 1


def test_papers_of_which_no_claim_was_run_are_not_shown(tmp_path, capsys):
    write_results(tmp_path, study(2, lambda b, w: 0.9))

    assert main(["claims", str(tmp_path)]) == 0

    assert capsys.readouterr().out == (
        "No claim of a paper is about points that were run; --paper NAME says what it lacks.\n"
    )
