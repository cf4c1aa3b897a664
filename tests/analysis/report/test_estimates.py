"""The open questions, estimated in words from simulated studies whose truth is known."""

import numpy as np
import pandas as pd
import pytest
from simulated_studies import simulated_curves, simulated_runs

from analysis.report.estimates import estimate_all
from analysis.stats.laws import constant_rate
from analysis.stats.pairs import compare
from analysis.stats.replicates import Estimate, format_estimate
from analysis.tables.metric import Measured, Metric

DISTANCE = "Is the distance from the start ultra-slow (logarithmic) or a power of the step?"
RULES = "Does the learning-rate rule make a difference (margin 0.3 points)?"
WHICH = "Which runs do these estimates use?"
RATES = "How does the best rate grow with the batch?"
RATIO = "What is the critical batch, E_min / S_min?"
CRITICAL = "Beyond which batch do examples to target double?"


def study(seeds: int = 3, rules=("linear", "none")) -> pd.DataFrame:
    rng = np.random.default_rng(5)
    return simulated_runs(
        [256, 1024], [0], seeds, accuracy=lambda b, w: 0.7, noise=0.0005, rng=rng, rules=rules
    )


def with_distances(runs: pd.DataFrame, epochs: int, law) -> pd.DataFrame:
    """Curves whose distance follows a law of the step, each run with a factor of its own."""
    curves = simulated_curves(runs, epochs)
    factors = np.repeat(np.random.default_rng(6).normal(1, 0.02, len(runs)), epochs)
    return curves.assign(distance_from_start=law(curves["step"]) * factors)


def estimated(runs: pd.DataFrame, curves: pd.DataFrame, question: str):
    return {e.question: e for e in estimate_all(Measured(runs, curves), draws=200)}[question]


@pytest.mark.parametrize(
    ("law", "verdict"),
    [
        (lambda t: 1 + np.log(t), "ultra-slow"),
        (lambda t: t**0.5, "power law"),
        (lambda t: np.tanh(t / 2e4), "neither fits"),
    ],
)
def test_the_law_of_the_distance_is_told_at_each_batch(law, verdict):
    runs = study()

    found = estimated(runs, with_distances(runs, 20, law), DISTANCE)

    assert found.table["global_batch"].tolist() == [256, 1024]
    assert found.table["verdict"].tolist() == [verdict] * 2
    assert ("exponent" in found.words) == (verdict == "power law")
    if verdict == "power law":
        assert found.table["exponent"].tolist() == pytest.approx([0.5, 0.5], abs=0.01)


@pytest.mark.parametrize(("epochs", "law"), [(5, np.sqrt), (20, lambda t: t * np.nan)])
def test_few_distances_or_none_decide_nothing(epochs, law):
    runs = study()

    found = estimated(runs, with_distances(runs, epochs, law), DISTANCE)

    assert found.words.startswith("Not run: runs with distance_from_start at six or more")


def test_the_phase_of_constant_rate_is_between_warmup_and_decay():
    """Epochs 3 to 9 of 12 at the peak, after two of warmup and before the decay."""
    runs = study(seeds=2, rules=("linear",))
    runs = runs[runs["global_batch"] == 256]
    curves = simulated_curves(runs, 12)
    rates = [0.1, 0.2, *[0.3] * 7, *[0.03] * 3]

    found = constant_rate(runs, curves.assign(lr=rates * len(runs)))
    runs.loc[runs.index[-1], "outcome"] = "diverged"

    assert constant_rate(runs, curves)["seed"].unique().tolist() == [0]
    steps = [epoch * (1_281_167 // 256) for epoch in range(3, 10)]
    assert found[found["seed"] == 1]["step"].tolist() == steps
    assert len(found) == 2 * 7


def test_rules_that_reach_the_same_accuracy_are_equivalent_and_others_different():
    runs = study()
    lower = (runs["lr_rule"] == "none") & (runs["global_batch"] == 1024)
    runs.loc[lower, "val_accuracy"] -= 0.05

    found = estimated(runs, simulated_curves(runs, 3), RULES)

    assert found.table["verdict"].tolist() == ["equivalent", "different"]
    assert found.table["difference"].iloc[1] == pytest.approx(0.05, abs=0.002)


def test_of_many_pairs_that_are_equal_none_differs_because_one_would_alone():
    runs = simulated_runs(
        [256, 512, 1024, 2048], [0, 1, 2, 5], 5, accuracy=lambda *_: 0.7, noise=0.004,
        rng=np.random.default_rng(3), rules=("linear", "sqrt"),
    )  # fmt: skip
    values = runs.pivot_table("val_accuracy", ["global_batch", "warmup_epochs", "seed"], "lr_rule")
    alone = [
        compare(pair["linear"].to_numpy(), pair["sqrt"].to_numpy()).verdict
        for _, pair in values.groupby(["global_batch", "warmup_epochs"])
    ]

    found = estimated(runs, simulated_curves(runs, 3), RULES)

    assert "different" in alone
    assert set(found.table["verdict"]) == {"inconclusive"}
    assert found.words == (
        "The runs do not distinguish the rules. Of 16 pairs of arms, judged together: inconclusive "
        "in 16. An interval is that of its pair alone, not corrected for the others."
    )


def test_rules_that_came_to_one_rate_are_one_training_and_need_no_seeds():
    runs = study()
    at_base = runs["global_batch"] == 256
    runs["lr_series_hash"] = runs["lr_series_hash"].mask(at_base, "the same")

    found = estimated(runs, simulated_curves(runs, 3), RULES)

    assert found.table["verdict"].tolist() == ["the same training", "equivalent"]
    assert found.table["seeds_needed"].tolist() == [0, 0]
    assert found.table["low"].isna().tolist() == [True, False]


def test_rules_that_ran_with_other_norm_spans_are_not_compared():
    runs = study()
    runs = runs.assign(bn_span=runs["bn_span"].mask(runs["lr_rule"] == "none", 32))

    found = estimated(runs, simulated_curves(runs, 3), RULES)

    assert found.words.startswith(
        "Refused: the arms differ in more than the setting in question: BatchNorm span 256 "
        "at 256, lin"
    )
    assert not len(found.table)


def test_rules_of_which_every_run_diverged_are_compared_by_rank():
    runs = study(seeds=5)
    lost = (runs["lr_rule"] == "none") & (runs["global_batch"] == 1024)
    runs = runs.assign(outcome=runs["outcome"].mask(lost, "diverged"))

    found = estimated(runs, simulated_curves(runs, 3), RULES)

    assert found.table["verdict"].tolist() == ["equivalent", "different"]
    assert "5 of 5 (57 to 100 %); judged by rank" in found.table["note"].iloc[1]


def test_estimates_of_a_part_of_the_runs_say_which_part():
    runs = study(seeds=4)
    long = runs["seed"] > 0
    configs = runs["config_json"].where(
        long, runs["config_json"].str.replace("{", '{"epochs": 9, ')
    )
    runs = runs.assign(epochs=runs["epochs"].where(long, 9), config_json=configs)
    measured = Measured(runs, simulated_curves(runs, 3))

    _, first, *_ = estimate_all(measured, draws=50)

    assert first.question == WHICH
    assert "12 of 16 runs: Simulated, Simulated, 90 epochs" in first.words


def test_seeds_added_to_a_poor_warmup_do_not_count_as_slow_ones_of_their_batch():
    runs = simulated_runs(
        [256, 512, 1024, 2048], [0, 5], 8, noise=0.001, rng=np.random.default_rng(4),
        accuracy=lambda b, w: 0.75 - 0.01 * np.log2(b / 256) - 0.1 * (w == 0), epochs=20,
    )  # fmt: skip
    whole = runs[runs["seed"] < 3]
    added = runs[(runs["seed"] < 3) | ((runs["warmup_epochs"] == 0) & (runs["global_batch"] > 512))]

    words = [estimated(some, simulated_curves(some, 20), RATIO).words for some in (whole, added)]

    (first, target), (then, same_target) = (
        (text.partition("hyperbola: ")[2].partition(" (")[0], text.partition("Target ")[2])
        for text in words
    )
    assert (first, target) == (then, same_target)
    assert first == "5,400 examples"


def test_estimates_of_several_rules_are_along_the_best_rate_of_each_batch_and_say_so():
    runs = study(seeds=4)
    at_large = (runs["lr_rule"] == "none") & (runs["global_batch"] == 1024)
    runs.loc[at_large, "val_accuracy"] -= 0.02

    _, which, *others = estimate_all(Measured(runs, simulated_curves(runs, 3)), draws=50)

    assert (
        which.words == "Each batch at its best setting: 256: peak rate 0.1; 1,024: peak rate 0.4."
    )
    breaking = next(answer for answer in others if answer.name == "breaking_batch")
    assert breaking.settings["chosen"]["1024"] == {"peak rate": 0.4}
    assert breaking.low >= 1024  # at the worse rule it would break


def test_one_batch_is_told_that_more_batches_are_needed_and_no_other_target():
    runs = study(rules=("linear",))
    one, two = runs[runs["global_batch"] == 256], runs

    found = [estimated(some, simulated_curves(some, 20), RATIO) for some in (one, two)]

    assert [answer.next for answer in found] == ["Run more batches."] * 2


def test_a_metric_on_both_sides_of_0_has_no_margin_of_1_percent():
    runs = study().drop(columns="val_loss")
    reward = np.random.default_rng(1).normal(0, 1, len(runs))
    runs = runs.assign(reward=reward, metric_name="reward", metric_mode="max")
    curves = simulated_curves(runs, 3)
    curves = curves.assign(reward=0.5)

    found = estimate_all(Measured(runs, curves, Metric("reward", "max")), draws=50)

    why = "reward is on both sides of 0, where 1 % of its mean says nothing"
    words = {e.question: e.words for e in found}
    assert words["At which batch does reward break?"] == f"Refused: there is no margin, as {why}."
    rules = f"Does the learning-rate rule make a difference (no margin, as {why})?"
    assert "equivalent" not in words[rules]


def test_runs_without_accuracies_are_told_so():
    runs = study().assign(val_accuracy=np.nan, best_val_accuracy=np.nan)
    curves = simulated_curves(runs, 3).assign(val_accuracy=np.nan)

    found = estimate_all(Measured(runs, curves), draws=50)

    answers = [a for a in found if a.question not in (DISTANCE, WHICH)]
    assert all(a.words.startswith(("Not run: ", "Not measured: ")) for a in answers)
    assert {a.question: a.words for a in found}[CRITICAL] == (
        "Not measured: these runs have no curves of accuracy."
    )


@pytest.mark.parametrize(
    ("value", "low", "high", "words"),
    [
        (10_974.2, 6_707.1, 15_050.0, "11,000 (95 %: 6,700 to 15,000), 5 seeds per point"),
        (0.54321, 0.4, 0.71, "0.54 (95 %: 0.40 to 0.71), 5 seeds per point"),
        (45_695, 41_016, np.inf, "45,700 (95 %: 41,000 or more), 5 seeds per point"),
        (1_055, -np.inf, 3_784, "1,100 (95 %: 3,800 or less), 5 seeds per point"),
        (3.0, 3.0, 3.0, "3 (95 %: 3 to 3), 5 seeds per point"),
        (0.5, -np.inf, np.inf, "0.5 (95 %: anything; these runs do not determine it), 5 seeds"),
    ],
)
def test_an_estimate_in_words(value, low, high, words):
    assert format_estimate(Estimate(value, low, high, 5, "method")).startswith(words)


def test_batches_at_which_no_run_finished_are_not_said_to_be_missing():
    runs = study().assign(outcome="diverged", val_accuracy=np.nan)

    found = estimated(runs, simulated_curves(runs, 3), "At which batch does accuracy break?")

    assert found.words == "Not run: two or more batches with a run that finished are needed."


def test_a_break_that_few_seeds_cannot_place_is_no_number():
    """The mean is 0.6 points below, with a spread of 2."""
    law, rng = {256: 0.7, 512: 0.7, 1024: 0.694}, np.random.default_rng(3)
    runs = simulated_runs(
        [*law], [0], 3, accuracy=lambda b, w: law[b], noise=0.02, rng=rng, rules=["none"]
    )

    found = estimate_all(Measured(runs, simulated_curves(runs, 3)), draws=200)

    (breaking,) = (e.words for e in found if "accuracy break" in e.question)
    assert breaking.startswith("The runs do not tell"), breaking
