"""A seed far from the others of its point is named, and the estimate is given without it too."""

import numpy as np
import pandas as pd
import pytest
from simulated_estimates import lr_runs, spoil, walk
from simulated_studies import simulated_runs
from simulated_verdicts import NOISES

from analysis.frontier.tradeoff import steps_to_target
from analysis.papers.claim import judge_claim, number_sessions
from analysis.papers.mccord2021 import PAPER
from analysis.papers.paper import place_runs
from analysis.report.which_batch import advise_batch
from analysis.stats.breaking_batch import breaking_batch
from analysis.stats.critical_batch import critical_batch, doubling_batch
from analysis.stats.laws import compare_rules, diffusion
from analysis.stats.optimum import best_lrs, best_warmups, exponent
from analysis.stats.outliers import drop_wild, find_wild
from analysis.stats.pairs import compare
from analysis.stats.replicates import Replicates
from analysis.tables.metric import ACCURACY

WILD = "seed 2 at 1,024"


def rng():
    return np.random.default_rng(0)


def accuracies(is_spoilt=True, **settings):
    """Seeds at batches 256 to 16,384, of which seed 2 at 1,024, warmup 5, fails by 0.3."""
    given = {"warmups": [5], "accuracy": lambda b, _: 0.75 - 0.002 * np.log2(b / 256), **settings}
    batches = [256, 1024, 4096, 16384]
    runs = simulated_runs(
        batches, given["warmups"], given.get("seeds", 4), accuracy=given["accuracy"],
        noise=0.001, rng=rng(),
    )  # fmt: skip
    here = (runs["global_batch"] == 1024) & (runs["seed"] == 2) & (runs["warmup_epochs"] == 5)
    runs.loc[here, "val_accuracy"] -= 0.3
    return runs if is_spoilt else runs[~here]


def optimum(_, warmup):
    return 0.9 - 0.02 * (np.log(warmup + 1) - np.log(7 + 1)) ** 2


def reached(is_spoilt=True):
    runs = accuracies(is_spoilt)[["global_batch", "seed", "outcome"]]
    need = (1e6 + 100 * runs["global_batch"]) * (1 + 0.02 * rng().normal(size=len(runs)))
    need[(runs["global_batch"] == 1024) & (runs["seed"] == 2)] *= 10
    steps = need / runs["global_batch"]
    return runs.assign(examples_to_target=need, steps_to_target=steps, reached_target=True)


@pytest.mark.parametrize("estimate", [critical_batch, doubling_batch, breaking_batch])
def test_a_wild_seed_is_named_beside_the_estimate_without_it(estimate):
    table = accuracies() if estimate is breaking_batch else reached()
    is_wild = (table["global_batch"] == 1024) & (table["seed"] == 2)

    given = (rng(),) if estimate is breaking_batch else ()
    found, without = (estimate(t, *given) for t in (table, table[~is_wild]))

    found, without = (getattr(e, "critical_batch", e) for e in (found, without))
    assert found.note.startswith(WILD)
    assert found.without.value == without.value
    assert without.without is None
    assert without.note in found.note


def test_the_best_settings_and_their_rules_are_given_without_a_wild_seed():
    warmups = best_warmups(accuracies(warmups=[0, 2, 5, 10, 20], accuracy=optimum), rng())
    rates = lr_runs(rng(), lambda b: (b / 3840) ** 0.5)
    spoilt = rates.copy()
    spoilt.loc[7, "val_accuracy"] = 0.2
    found = best_lrs(spoilt, rng())

    assert exponent(warmups).note.startswith(f"{WILD}, warmup 5 is ")
    assert exponent(warmups).without.value == pytest.approx(0, abs=0.05)
    rows = warmups.table().set_index("global_batch")["note"]
    assert all(WILD in note for note in rows)  # one response says where each batch's best is
    assert exponent(found).without.value == pytest.approx(0.5, abs=0.05)
    note = compare_rules(found).note
    assert note.startswith("seed 2 at 3,840, rate 0.5 is ")
    assert "; without, the lowest AICc is sqrt" in note


def test_two_arms_and_a_distance_name_a_wild_value():
    first, second = rng().normal(0.76, 0.002, (2, 5))
    spoilt = np.append(first, 0.3)
    series = walk(rng(), lambda t: t**0.35, seeds=6)
    far = series["distance"].where(series["seed"] != 3, 40 * series["distance"])

    found = compare(spoilt, second).difference
    power = diffusion(series.assign(distance=far), rng(), 200).power

    assert found.note.startswith("seed 5 at the first arm is ")
    assert found.without.value == pytest.approx(first.mean() - second.mean())
    assert power.note.startswith("seed 3 at step 10,000 is ")
    same = diffusion(series[series["seed"] != 3], rng(), 200).power
    assert power.without.value == pytest.approx(same.value)


def test_advice_and_steps_say_what_they_would_be_without_a_wild_seed():
    """With five other seeds at least: the spread of fewer is not known."""
    words = advise_batch(accuracies(seeds=6), ACCURACY).words
    same = advise_batch(accuracies(is_spoilt=False, seeds=6), ACCURACY).words
    steps = steps_to_target(reached())

    assert "standard deviations" not in advise_batch(accuracies(seeds=5), ACCURACY).words
    assert "Seed 2 at 1,024, warmup 5, lr_rule=linear, base_lr 0.1 is " in words
    assert words.endswith(f"; without, u{same[1:]}")
    assert steps.notes[0].startswith("Seed 2 at 1,024 is ")
    assert "off the others; without, 1,0" in steps.notes[0]


@pytest.mark.parametrize(("loss", "said"), [(0.02, "reproduced"), (0.0, "undecided")])
def test_a_claim_says_what_it_would_be_without_a_wild_seed(loss, said):
    """0 epochs of warmup lose 2 points at 30,720, or none, where a run at 5 epochs fails."""
    runs = simulated_runs(
        [7680, 30720], [0, 5, 10, 20], 5, accuracy=lambda _, w: 0.75 - loss * (w == 0),
        noise=0.001, rng=rng(),
    )  # fmt: skip
    claim = next(c for c in PAPER.claims if c.text.startswith("At 30,720, training without"))
    here = (runs["global_batch"] == 30720) & (runs["warmup_epochs"] == 5) & (runs["seed"] == 4)
    runs.loc[here, "val_accuracy"] = 0.1

    verdict = judge_claim(claim, place_runs(number_sessions(runs), PAPER), rng(), 1)

    assert verdict.p > 0.05
    assert verdict.why.startswith("seed 4 at 30,720, warmup 5, lr_rule=linear is ")
    assert f"; without, {said}: p = " in verdict.why


@pytest.mark.parametrize(
    ("values", "is_wild"),
    [
        # Steps of 1: a value two steps away is no surprise, one six steps away is.
        (([12.0] * 9 + [14.0], [13.0] * 5 + [14.0] * 5), False),
        (([12.0] * 9 + [18.0], [13.0] * 5 + [14.0] * 5), True),
        # Of two seeds neither is wild; nor where all others agree and nothing tells the resolution.
        (([1.0, 90.0], [2.0, 2.1, 2.2]), False),
        (([5.0] * 9 + [6.0], [5.0] * 10), False),
    ],
)
def test_few_distinct_values_are_resolution_not_certainty(values, is_wild):
    points = pd.DataFrame({"global_batch": [1, 2]})
    found = find_wild(Replicates(points, tuple(map(np.array, values))))

    assert bool(found) == is_wild


def test_seeds_of_honest_studies_are_rarely_wild_and_spoilt_ones_are_found():
    """Ten spreads or more; docs/statistics.md has the shares of 1,000 studies of each kind."""
    random = rng()
    runs = simulated_runs(range(1, 6), [5], 5, accuracy=lambda *_: 0.0)
    named = {"normal": 0, "spoilt": 0}
    for _ in range(100):
        honest = runs.assign(val_accuracy=NOISES["normal"]((len(runs),), random))
        slim = honest[["global_batch", "seed", "outcome", "val_accuracy"]]
        spoilt = spoil(slim, "val_accuracy", random)
        for name, frame in {"normal": slim, "spoilt": spoilt}.items():
            named[name] += bool(drop_wild(frame, ["global_batch"], "val_accuracy")[1])

    assert named["normal"] <= 2
    assert named["spoilt"] >= 95
