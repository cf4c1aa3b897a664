"""The best rate at all batches by one response, in worlds that it does not assume."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from simulated_responses import BATCHES, CUSP, GRIDS, STEEP, Grid, ask, flat, judge

from analysis.stats.laws import compare_rules
from analysis.stats.optimum import best_lrs, best_settings, best_warmups, exponent


def slope(u):
    """The larger the rate the better."""
    return 0.006 * (2 - np.minimum(u, 2))


def rng(seed=0):
    return np.random.default_rng(seed)


@pytest.mark.parametrize(
    ("kind", "width", "told"),
    [
        ("symmetric, 5 rates, noise .15", 0.12, 0.75), ("symmetric, 5 rates, noise .4", 0.3, 0.75),
        ("steep, 5 rates, noise .15", 0.2, 0.75), ("steep, 5 rates, noise .4", 0.3, 0.6),
        ("symmetric, 3 rates, noise .15", 0.3, 0.75), ("symmetric, 3 rates, noise .4", 0.6, 0.5),
        ("steep, 3 rates, noise .15", 0.5, 0.5), ("steep, 3 rates, noise .4", 0.7, 0.4),
    ],
)  # fmt: skip
def test_the_exponent_is_answered_and_rules_are_told_apart(kind, width, told):
    """With 95 % coverage, fewer than 10 of 12 has a probability of 0.02, fewer than 9 0.002."""
    found = judge(GRIDS[kind], studies=12)

    assert found["answered"] >= 10 / 12
    assert found["covers"] >= 0.75
    assert found["width"] <= width
    assert found["told apart"] >= told
    assert found["false"] <= 0.25


def test_one_seed_a_point_answers():
    """The scatter about the response is the noise."""
    found = judge(Grid(seeds=1), studies=12)

    assert found["answered"] == 1
    assert found["covers"] >= 0.75
    assert found["width"] < 0.3


def test_runs_that_diverged_say_that_the_rate_was_too_large():
    """Accuracy rises up to a cliff: those that finished alone put the best beyond the grid."""
    runs = Grid(loss=slope, diverges_at=1.2, rates=5, factor=2.0).draw(rng())
    finished = runs[runs["outcome"] == "finished"]

    best, without = (best_lrs(r, rng(), 50).best for r in (runs, finished))

    true = 0.1 * (np.array(BATCHES) / 512) ** 0.5
    assert (best < 2.5 * true).all()
    assert np.isinf(without).any()


def test_what_lies_far_below_the_best_moves_nothing():
    """Rates at which accuracy is tens of points lower, where no smooth shape can follow."""
    for seed in (0, 1):
        asked = ask(STEEP.following(0.0), rng(seed))
        assert asked.optima.response is not None
        assert asked.found.low < 0 < asked.found.high
        assert asked.found.high - asked.found.low < 0.3
        assert asked.left == ["none"]


def test_batches_that_lie_off_the_law_widen_the_interval():
    """By a tenth in the logarithm, at all seeds alike, which seeds do not show."""
    off, on = ([ask(Grid(off=o), rng(i)) for i in range(8)] for o in (0.1, 0.0))

    assert sum(s.found.low <= 0.5 <= s.found.high for s in off) >= 6
    assert sum("sqrt" in s.left for s in off) >= 6
    widths = [np.median([s.found.high - s.found.low for s in each]) for each in (off, on)]
    assert widths[0] > 1.3 * widths[1]
    assert any("batches lie off the power law" in s.found.note for s in off)


def test_shapes_that_differ_between_batches_are_no_false_exponent():
    """The largest batch loses 16 times as much as the smallest for the same factor on the rate."""
    studies = [ask(Grid(deepens=1.0), rng(i)) for i in range(8)]

    assert sum(not (s.found.low > 0.5 or s.found.high < 0.5) for s in studies) >= 6


def test_the_rules_that_are_left_are_those_inside_the_interval():
    """Also where the interval is wider than the profile."""
    three = Grid(rates=3, factor=3.0, guess=0.0, noise=0.0005)
    for i, grid in enumerate((Grid(off=0.1), three, three, Grid(), CUSP)):
        asked = ask(grid, rng(i))
        inside = [n for n, p in (("none", 0.0), ("sqrt", 0.5), ("linear", 1.0))
                  if asked.found.low < p < asked.found.high]  # fmt: skip
        assert asked.left == inside
        ends = asked.found.low, asked.found.high
        assert [asked.optima.response.chance_of(end) for end in ends] == pytest.approx(
            [0.05, 0.05], abs=0.02
        )


def test_three_rates_do_not_know_how_steep_the_response_is():
    """A parabola through them moves less than a response with straighter arms."""
    found = judge(replace(GRIDS["symmetric, 3 rates, noise .15"], noise=0.0005), studies=12)

    assert found["covers"] >= 0.75


def test_a_setting_without_effect_has_no_exponent_and_excludes_no_rule():
    studies = [ask(Grid(loss=flat), rng(i)) for i in range(10)]

    assert sum(s.found.low <= 0.5 <= s.found.high or np.isnan(s.found.low) for s in studies) >= 8
    assert sum(np.isfinite(s.found.low) and np.isfinite(s.found.high) for s in studies) <= 4


def test_warmups_of_zero_count():
    """Best 5 epochs at 512, growing as the square root; on the scale of warmup + 1."""
    grid = Grid()
    runs = grid.draw(rng())
    warmups = runs.groupby("global_batch")["peak_lr"].rank(method="dense").map(
        dict(enumerate((0.0, 2, 5, 12, 30), 1))
    )  # fmt: skip
    best = 5 * (runs["global_batch"] / 512) ** 0.5
    lost = 0.01 * np.log((warmups + 1) / (best + 1)) ** 2
    noise = 0.001 * rng().normal(size=len(runs))
    runs = runs.assign(warmup_epochs=warmups, val_accuracy=0.9 - lost + noise)

    optima = best_warmups(runs, rng())

    found = exponent(optima)
    assert found.low < 0.5 < found.high
    assert found.high - found.low < 0.3
    assert optima.best[2] == pytest.approx(5, rel=0.15)


def test_missing_points_and_unequal_seeds_are_no_hindrance():
    runs = Grid().draw(rng())
    shuffled = runs.sample(frac=0.6, random_state=0)

    found = exponent(best_lrs(shuffled, rng(), 50))

    assert found.low < 0.5 < found.high
    assert found.high - found.low < 0.3


def test_a_batch_with_two_rates_is_left_out_and_the_others_answer():
    runs = Grid().draw(rng())
    rates = runs.groupby("global_batch")["peak_lr"].rank(method="dense")
    few = runs[(runs["global_batch"] != 128) | (rates <= 2)]

    optima = best_lrs(few, rng(), 50)

    assert optima.batches.tolist() == [256, 512, 1024, 2048]
    assert exponent(optima).low < 0.5 < exponent(optima).high


def test_a_further_setting_is_fitted_besides():
    """A smoothing of which .1 is best: left out of the model it would be noise of 1 point."""
    frames = [Grid(seeds=2).draw(rng(i)).assign(smoothing=s) for i, s in enumerate((0.0, 0.1, 0.2))]
    runs = pd.concat(frames, ignore_index=True)
    runs["val_accuracy"] -= 1.5 * (runs["smoothing"] - 0.1).abs() ** 2

    found = exponent(best_settings(runs, "peak_lr", rng(), 50, others=["smoothing"]))

    assert found.low < 0.5 < found.high < found.low + 0.2


def test_where_one_response_does_not_fit_each_batch_answers_for_itself():
    """Parabolas whose best follows no law of the batch."""
    grid = Grid(loss=lambda u: 0.009 * u**2, off=0.4, noise=0.0005)
    true = 0.1 * (np.array(grid.batches) / 512) ** 0.5 * np.exp(0.4 * rng().normal(size=5))

    optima = best_lrs(grid.draw(rng()), rng())

    assert optima.response is None
    table = optima.table()
    assert table["best"].to_numpy() == pytest.approx(true, rel=0.1)
    assert (table["low"] < true).all()
    assert (table["high"] > true).all()
    comparison = compare_rules(optima)
    assert not len(comparison.table)
    assert comparison.note == "one response does not fit all batches"
