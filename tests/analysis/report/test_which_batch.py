"""Which batch to train with: what is said, and how often it is wrong in simulated studies."""

import numpy as np
import pandas as pd
import pytest
from simulated_studies import simulated_curves, simulated_runs, with_settings, write_results

from analysis.cli import main
from analysis.report.estimates import choose_batch
from analysis.report.which_batch import _count_seeds, advise_batch, compare_batches
from analysis.tables.metric import ACCURACY, Measured

BATCHES, WARMUPS = (30, 60, 120), (0, 1, 5)


def study(seeds, law, noise=0.002, seed=4):
    rng = np.random.default_rng(seed)
    runs = simulated_runs(BATCHES, WARMUPS, seeds, accuracy=law, noise=noise, rng=rng, epochs=20)
    return runs.assign(examples_per_s=1000.0 * runs["global_batch"])


def said(runs):
    return advise_batch(runs, ACCURACY).words


def test_the_fastest_batch_that_loses_little_is_named_with_what_is_not_excluded():
    found = advise_batch(study(3, lambda b, w: 0.9 + 0.01 * (w == 1), seed=7), ACCURACY)
    words = found.words

    assert words.startswith("Use 120 (warmup 1 epoch, base_lr 0.1). It looks as good as the best")
    assert " behind, at most 0." in words
    assert " with 95 % confidence, and 4 times faster per epoch than 30. " in words
    assert "No batch is shown to lose more than 0.5 points: a loss of " in words
    assert (found.value, found.low, found.high, found.unit) == (120, 30, 120, "examples")
    assert found.settings["loss_low"] < found.settings["loss"] < found.settings["loss_high"]


def test_two_seeds_that_differ_alike_at_all_batches_do_not_make_losses_certain():
    """As of 360 examples; 0.28 points were "at most 0.28 with 95 % confidence"."""
    runs = study(2, lambda b, w: 0.0).query("warmup_epochs == 0")
    hits = 352 + 3 * runs["seed"] - (runs["global_batch"] == 60) - 3 * (runs["global_batch"] == 120)

    table = compare_batches(runs.assign(val_accuracy=hits / 360), ACCURACY)

    assert table["loss"].round(6).tolist() == [-0.002778, 0.002778, 0.008333]
    assert (table["at_most"] > table["loss"] + 0.005).all()
    assert (table["at_least"] < table["loss"] - 0.005).all()


def test_a_batch_that_is_shown_to_be_worse_is_named_and_not_advised():
    found = advise_batch(study(5, lambda b, w: 0.9 - 0.05 * (b == 120)), ACCURACY)

    assert found.words.startswith("Use 60 ")
    assert ". 120 is shown to lose more than 0.5 points" in found.words
    assert (found.low, found.high) == (30, 60)


def test_each_batch_is_judged_at_its_best_rate():
    """At the lower rate 120 is best, but 60 at the higher rate beats it."""
    low = study(3, lambda b, w: 0.5 + 0.001 * b).assign(base_lr=0.1)
    high = study(3, lambda b, w: 0.9 - 0.4 * (b == 120), seed=5).assign(base_lr=0.3)

    found = advise_batch(pd.concat([low, high], ignore_index=True), ACCURACY)

    assert found.words.startswith("Use 60 (warmup ")
    assert ", base_lr 0.3). " in found.words
    assert list(found.table["base_lr"]) == [0.3, 0.3, 0.1]
    assert found.settings["base_lr"] == 0.3


def test_a_best_setting_at_an_end_of_its_grid_is_said():
    runs = study(3, lambda b, w: 0.9 + 0.01 * w)

    found = choose_batch(Measured(runs, pd.DataFrame()))

    assert "(warmup 5 epochs, the longest tried, base_lr 0.1). " in found.words
    assert found.settings["at_end_of_grid"] == ["warmup"]
    assert found.next.startswith("Extend the grid")


def test_a_batchnorm_span_of_its_own_at_each_batch_is_refused_with_the_remedy():
    runs = study(3, lambda b, w: 0.9)
    runs = runs.assign(bn_span=runs["global_batch"].map({30: 30, 60: 60, 120: 20}))

    found = choose_batch(Measured(runs, pd.DataFrame()))

    assert found.words.startswith("Refused: the arms differ in more than the setting in question")
    assert found.next == "Run all batches again with bn_span=10."


def test_the_lowest_rate_is_not_at_an_end_where_lower_ones_diverged():
    plain = study(3, lambda b, w: 0.9)
    plain = plain[plain["warmup_epochs"] == 0]
    parts = [
        with_settings(plain, base_lr=rate).assign(
            base_lr=rate, peak_lr=rate, val_accuracy=plain["val_accuracy"] - rate
        )
        for rate in (0.1, 0.2, 0.4)
    ]
    runs = pd.concat(parts, ignore_index=True)
    runs = runs.assign(run_id=[f"r{i}" for i in range(len(runs))])
    lower = with_settings(plain, base_lr=0.05).assign(base_lr=0.05, peak_lr=0.05)
    lower = lower.assign(outcome="diverged", val_accuracy=np.nan)

    at_end = choose_batch(Measured(runs, pd.DataFrame()))
    within = choose_batch(Measured(pd.concat([runs, lower], ignore_index=True), pd.DataFrame()))

    assert "base_lr 0.1, the lowest tried" in at_end.words
    assert "lowest tried" not in within.words


def test_a_price_of_choosing_widens_what_is_not_excluded():
    runs = study(3, lambda b, w: 0.9)
    dear = compare_batches(runs, ACCURACY, {30: 1e-4, 60: 1e-4, 120: 1e-4})
    plain = compare_batches(runs, ACCURACY)

    assert (dear["at_most"] > plain["at_most"] + 0.01).all()


def test_seeds_that_diverged_count_as_the_worst_and_are_said():
    """The four good seeds of 120 are the best by far, and it is not advised."""
    runs = study(5, lambda b, w: 0.9 + 0.02 * (b == 120))
    runs.loc[(runs["global_batch"] == 120) & (runs["seed"] == 1), "outcome"] = "diverged"

    found = advise_batch(runs, ACCURACY)

    assert found.value == 60
    assert ". At 120 1 of 5 runs diverged, which counts as the worst." in found.words
    assert found.table["diverged"].tolist() == [0, 0, 1]


def test_speeds_are_those_on_devices_that_all_batches_ran_on():
    runs = study(3, lambda b, w: 0.9, noise=0.0001)
    is_old = (runs["seed"] == 0) | (runs["global_batch"] == 30)
    mixed = runs.assign(
        device_kind=np.where(is_old, "old", "new"),
        examples_per_s=np.where(is_old, 1.0, 10.0) * runs["global_batch"],
    )
    apart = mixed.assign(device_kind=runs["global_batch"].map(str))

    assert "4 times faster per epoch than 30" in said(mixed)
    assert "how fast the batches are on the same devices is not known" in said(apart)


def test_a_batch_of_which_most_runs_ran_out_of_memory_is_left_out_and_said():
    runs = study(3, lambda b, w: 0.9)
    runs = runs[runs["warmup_epochs"] == 0].copy()
    runs.loc[(runs["global_batch"] == 120) & (runs["seed"] > 0), "outcome"] = "out_of_memory"

    assert said(runs).endswith(". Left out, as too few runs finished: 120 (1 of 3).")


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
    assert "shown to lose" not in words
    assert words.endswith(". At 120 1 of 1 run diverged, which counts as the worst.")


@pytest.mark.parametrize("lost", [0.0, 0.004])
@pytest.mark.parametrize("seeds", [3, 5])
def test_a_loss_is_seldom_larger_than_said_and_no_batch_is_wrongly_said_to_lose(seeds, lost):
    """Noise of 0.3 points; the best warmup of each batch is chosen from the same seeds."""
    runs, rng, studies = study(seeds, lambda b, w: 0.9), np.random.default_rng(1), 100
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


def test_accuracies_that_guessing_would_have_are_no_recommendation():
    """Of 3 classes and 39 examples: 1/3 + 1.96 sqrt(1/3 2/3 / 39) = .481."""
    data = {"num_classes": 3, "num_val_examples": 39}
    low = with_settings(study(3, lambda b, w: 0.35 - 0.05 * (b == 120)), data=data)
    high = with_settings(study(3, lambda b, w: 0.5), data=data)

    guessed, learned = (advise_batch(runs, ACCURACY) for runs in (low, high))

    assert guessed.words == (
        "Nothing is shown to have been learned: the best mean is 35 %, and guessing among 3 "
        "classes gets 33 %, up to 48 % on 39 validation examples."
    )
    assert not guessed.has_answer
    assert guessed.next.startswith("Try learning rates")
    assert learned.words.startswith("Use ")


@pytest.mark.parametrize(
    ("seeds", "most", "needed"), [(3, 0.02, 12), (3, 0.009, 0), (1, np.nan, 3), (4, 1.0, 40000)]
)
def test_seeds_that_exclude_the_loss_are_counted(seeds, most, needed):
    """Loss 0 and margin .01: an interval twice as wide as the margin takes four times the seeds."""
    chosen = pd.Series({"loss": 0.0, "at_most": most, "num_seeds": seeds})

    assert _count_seeds(chosen, 0.01) == pytest.approx(needed)
