"""Where examples double, and E_min / S_min, of simulated training whose critical batch is known."""

import json
import re

import numpy as np
import pandas as pd
import pytest
from simulated_worlds import BATCHES, CRITICAL, bend, hyperbola, reached_by, train

from analysis.report.estimates import estimate_all
from analysis.report.scaling import judge_scaling, judge_speed
from analysis.stats.answer import answers_json
from analysis.stats.critical_batch import critical_batch
from analysis.stats.to_target import at_their_ends, to_target
from analysis.tables.metric import ACCURACY, Measured

#: Twice the examples of batch 128 are where ``batch + 1,500 = 2 (128 + 1,500)``.
DOUBLED = 1756


def answers(runs, curves, target=None):
    found = estimate_all(Measured(runs, curves, ACCURACY), target, draws=20)
    names = ("doubling_batch", "critical_batch")
    return [next(a for a in found if a.name == name) for name in names]


def level_reached(examples, batch):
    """The accuracy after so many examples at a constant rate."""
    return 0.76 - 0.25 * (examples / hyperbola(batch) / 100) ** -0.6


@pytest.mark.parametrize("settings", [
    {"noise": 0.004}, {"every": 3}, {"schedule": "wsd", "warmup": 5}, {"overfits": 0.1},
    {"batches": (100, 300, 700, 1500, 3000), "freedom": 3.0}, {"seeds": 1},
], ids=str)  # fmt: skip
def test_both_batches_are_found_in_five_studies(settings):
    """With 95 % coverage, fewer than 3 of 5 has a probability of 0.001."""
    rng = np.random.default_rng(5)
    pairs = [answers(*train(rng, **settings)) for _ in range(5)]

    doubled = CRITICAL + 2 * settings.get("batches", BATCHES)[0]
    assert sum(c.low <= CRITICAL <= c.high for _, c in pairs) >= 3
    assert np.median([c.value for _, c in pairs]) == pytest.approx(CRITICAL, rel=0.15)
    assert all(d.has_answer for d, _ in pairs)
    assert not any(d.low > doubled or d.high < doubled for d, _ in pairs)


def test_first_crossings_of_noisy_curves_are_not_early():
    """The first evaluation beyond the target is, with noise of .6 points at 60 evaluations."""
    rng = np.random.default_rng(0)
    runs, curves = train(rng, seeds=200, noise=0.006, level=0, speed=0, lengths=(60,))
    target = level_reached(25 * 51_200, 512)

    found = to_target(runs, curves, target)

    need = 25 * 51_200 / hyperbola(512) * hyperbola(found["global_batch"])
    early = np.log(found["examples_to_target"] / need).groupby(found["global_batch"]).mean()
    hits = curves[curves["val_accuracy"] >= target].drop_duplicates("run_id")
    first = hits.set_index("run_id")["examples_seen"].reindex(found["run_id"]).to_numpy()
    assert (np.log(first / need).groupby(found["global_batch"]).mean() < -0.03).any()
    assert early.abs().max() < 0.02


def test_unfinished_runs_are_later_than_their_ends():
    """At a target that batch 2,048 does not reach, its ends are more than twice 128's examples."""
    runs, curves = train(np.random.default_rng(1), seeds=5)
    target = level_reached(25.6 * 51_200, 1500)

    doubling, critical = answers(runs, curves, target)
    short = runs["global_batch"] < 2048
    _, without = answers(runs[short], curves, target)

    assert (doubling.low, doubling.high) == (1024, 2048)
    assert "not every run reached the target: batch 2,048" in doubling.words
    assert critical.low < CRITICAL < critical.high
    assert critical.high < without.high  # that they are late is evidence


def test_where_nothing_doubles_it_is_said_up_to_which_batch_and_what_to_run():
    doubling, _ = answers(*train(np.random.default_rng(2), batches=(128, 256, 512, 1024)))

    assert (doubling.low, doubling.high) == (1024, np.inf)
    assert np.isnan(doubling.value)
    assert "at no batch that was run: not up to 1,024 (95 %)" in doubling.words
    assert doubling.next == (
        "python -m sweeper -m model._target_=Simulated schedule=constant bn_span=256 "
        "micro_batch_limit=768 base_lr=0.1 batch=2048 warmup=0 seed=0,1,2"
    )
    assert doubling.settings["definition"] == "twice the examples of the smallest batch, 128"


@pytest.mark.parametrize("schedule", ["cosine", "linear_decay"])
@pytest.mark.parametrize("target", [None, 0.68])
@pytest.mark.parametrize("kept", ["rates", "config"])
def test_a_rate_that_falls_over_a_fixed_length_answers_nothing(schedule, target, kept):
    runs, curves = train(np.random.default_rng(3), schedule=schedule, warmup=5)
    curves = curves if kept == "rates" else curves.assign(lr=np.nan)

    found = answers(runs, curves, target)

    for answer in found:
        assert answer.words.startswith("Not answered: the learning rate falls before the target")
        assert "schedule=wsd" in answer.next
        assert not answer.has_answer


def test_runs_of_several_lengths_count_at_their_ends():
    rng = np.random.default_rng(4)
    lengths = (6, 8, 11, 16, 22, 31)
    pairs = [answers(*train(rng, schedule="cosine", lengths=lengths)) for _ in range(4)]

    assert [c.low <= CRITICAL <= c.high for _, c in pairs].count(True) >= 3
    assert all(d.low <= DOUBLED <= d.high for d, _ in pairs)


def test_of_several_settings_of_a_length_the_best_counts():
    runs, curves = train(np.random.default_rng(4), schedule="cosine", lengths=(6, 8, 11, 16, 22))
    worse = runs.assign(run_id=runs["run_id"] + "w"), curves.assign(run_id=curves["run_id"] + "w")
    worse[1]["val_accuracy"] -= 0.2
    both = [pd.concat([one, own]) for one, own in zip(worse, (runs, curves), strict=True)]

    alone, beside = (at_their_ends(*those)[1] for those in ((runs, curves), both))

    columns = ["step", "val_accuracy", "evaluation"]
    of_seeds = [ends.sort_values(columns)[columns].to_numpy().tolist() for ends in (alone, beside)]
    assert of_seeds[0] == of_seeds[1]


def test_where_the_law_is_no_hyperbola_only_the_doubling_is_answered():
    """Examples stay the same up to 600 and are twice those of 128 at 1,200."""
    doubling, critical = answers(*train(np.random.default_rng(6), cost=bend))

    assert (doubling.low, doubling.high) == (1024, 2048)
    assert critical.words.startswith("No E_min / S_min: the hyperbola does not fit")
    assert not critical.has_answer


def test_programs_read_both_answers():
    found = json.loads(answers_json(answers(*train(np.random.default_rng(7), is_wild=True))))

    doubling, critical = found
    assert [row["unit"] for row in found] == ["examples", "examples"]
    assert critical["settings"]["definition"] == "E_min/S_min"
    assert critical["settings"]["target"] == doubling["settings"]["target"]
    assert critical["settings"]["without_wild"]["low"] < CRITICAL


@pytest.mark.parametrize("noise", [0.02, 0.05, 0.1])
def test_one_seed_a_batch_has_the_interval_of_the_batches_scatter(noise):
    """With 95 % coverage, fewer than 33 of 40 has a probability of 0.004; it was 15 to 62 %."""
    rng = np.random.default_rng(0)
    batches = [128, 256, 512, 1024, 2048, 4096]

    found = [
        critical_batch(reached_by(rng, batches, 1, noise=noise)).critical_batch for _ in range(40)
    ]

    assert sum(e.low <= 2000 <= e.high for e in found) >= 33


def test_three_batches_of_one_seed_have_no_interval_and_no_cost_has_one():
    reached = reached_by(np.random.default_rng(0), [128, 512, 2048], 1)

    _, critical, cost = list(judge_scaling(reached))

    assert "one seed: no interval" in critical.words
    assert not critical.has_answer
    assert "every seed measured the same" not in cost.words
    assert "no difference is shown" not in cost.words
    assert cost.table["low"].tolist() == ["", ""]


def test_honest_runs_are_not_suspicious_beside_a_reference_with_one_seed():
    """146 of 150 were."""
    rng = np.random.default_rng(1)
    batches = [256, 512, 1024, 2048, 4096]
    honest = [
        judge_speed(reached_by(rng, batches, 1), reached_by(rng, batches, 1)) for _ in range(40)
    ]
    fast = [judge_speed(reached_by(rng, batches, 1, factor=0.6), reached_by(rng, batches, 1)).words
            for _ in range(8)]  # fmt: skip
    few = judge_speed(reached_by(rng, [256, 512], 3), reached_by(rng, [256, 512], 1))

    assert sum(a.words.startswith("Yes") for a in honest) <= 6  # of 40 at 5 %: more has 1.4 %
    assert sum(text.startswith("Yes") for text in fast) >= 6
    assert few.words.startswith("Not judged: the reference has one seed at 2 batches")
    assert not few.has_answer


def test_zhangs_critical_batch_of_151m():
    """Zhang et al. 2024, arXiv:2410.21676: steps to a loss at 64 to 16,384 sequences."""
    batches = 64 * 2 ** np.arange(9)
    steps = np.array([96_000, 49_000, 24_000, 12_000, 7_128, 4_350, 2_940, 2_400, 2_300])
    reached = pd.DataFrame({"global_batch": batches, "examples_to_target": batches * steps * 1.0})

    found = critical_batch(reached.assign(reached_target=True)).critical_batch

    assert found.value == pytest.approx(3254, rel=0.001)
    assert found.low < 3254 < found.high


def test_a_target_that_comes_too_early_is_answered_with_one_that_fits():
    runs, curves = train(np.random.default_rng(5))

    early, _ = answers(runs, curves, 0.3)
    found = re.fullmatch(r"Choose another target: --target (0\.\d+)", early.next)
    later, _ = answers(runs, curves, float(found[1]))

    assert early.words.startswith("Not answered: every batch must take 4 epochs or more")
    assert later.has_answer


def test_where_no_target_fits_it_is_said_with_what_would():
    """Three evaluations of each run: no target takes four."""
    runs, curves = train(np.random.default_rng(5))

    found = answers(runs, curves[curves["epoch"].isin([10, 20, 30])], 0.6)

    assert {answer.next for answer in found} == {
        "Evaluate more often (evaluate_every=) or train longer: no target fits these runs."
    }
