"""Comparisons with the best and breaks, in simulated studies that share no assumption with them."""

import numpy as np
import pytest
from simulated_accuracies import WORLDS, judge_best, judge_break

from analysis.stats.best_of import compare_with_best
from analysis.stats.shared_variances import moderate_variances


def test_variances_that_are_alike_are_pooled_and_one_without_replicates_gets_theirs():
    variances, freedom = moderate_variances(
        np.array([1.0, 1.1, 0.9, np.nan]), np.array([2.0, 2, 2, 0])
    )

    assert variances == pytest.approx([1.0] * 4)
    assert freedom == pytest.approx([6.0] * 4)


def test_the_prior_of_many_variances_is_found():
    """Variances over chi-squared of 6 degrees of freedom, each measured with 4."""
    rng = np.random.default_rng(0)
    true = 2.0 * 6 / rng.chisquare(6, 4000)
    measured = true * rng.chisquare(4, 4000) / 4

    moderated, freedom = moderate_variances(measured, np.full(4000, 4.0))

    assert freedom[0] == pytest.approx(6 + 4, rel=0.1)
    assert np.log(moderated / true).std() < 0.75 * np.log(measured / true).std()


def test_a_wild_variance_is_not_spread_over_the_others():
    variances, freedom = moderate_variances(np.array([1.0, 1.2, 0.8, 1.1, 1e4]), np.full(5, 4.0))

    assert variances[:4].max() < 100
    assert variances[4] > 1000
    assert freedom.max() < 8


def test_a_variance_of_zero_gets_what_the_others_show():
    variances, _ = moderate_variances(np.array([0.0, 4.0, 1.0, 0.2]), np.full(4, 2.0))

    assert variances[0] > 0


def test_intervals_are_those_of_dunnett_and_tukey():
    """Three means of spread 1 with 12 degrees of freedom: Dunnett's d = 2.50, Tukey's q = 3.77."""
    free, own = np.full(3, 12.0), np.full(3, 4.0)

    loss, least, most = compare_with_best(np.array([0.0, 9.0, 4.0]), np.full(3, 0.5), free, own)

    assert loss == pytest.approx([9, -5, 5])
    assert most - loss == pytest.approx(np.full(3, 2.50), rel=0.02)
    assert loss - least == pytest.approx(np.full(3, 3.77 / 2**0.5), rel=0.02)


def test_the_best_is_held_against_all_others_and_not_the_next_alone():
    """The second is far behind for its spread; the third scatters so widely that it may be best."""
    errors, free, own = np.array([0.01, 0.01, 100.0]), np.full(3, 4.0), np.full(3, 4.0)

    loss, _, most = compare_with_best(np.array([10.0, 9.0, 8.0]), errors, free, own)

    assert loss[0] == -1
    assert most[0] > 20


@pytest.mark.parametrize(
    ("kind", "width"),
    [
        ("3 seeds", 0.010), ("3 seeds, levels of runs", 0.0105), ("5 seeds, levels of runs", 0.007),
        ("equal", 0.010), ("spreads 1:4", 0.02), ("spreads 10:1", 0.05), ("t noise", 0.010),
    ],
)  # fmt: skip
def test_losses_are_held_and_known_to_a_point(kind, width):
    """With 95 % coverage, fewer than 85 % of 40 has a probability of 0.003."""
    found = judge_best(WORLDS[kind], studies=40)

    assert found["covers"] >= 0.85
    assert found["width"] <= width
    assert max(found["shown_false"], found["excluded_false"]) <= 0.05
    if kind == "3 seeds":
        assert found["risk_below_margin"] > 0.3


@pytest.mark.parametrize("kind", ["3 seeds", "5 seeds, levels of runs", "no powers of two"])
def test_the_break_is_held_by_an_interval_of_three_times_its_lower_end(kind):
    found = judge_break(WORLDS[kind], studies=40)

    assert found["covers"] >= 0.85
    assert found["ratio"] <= 3


def test_where_nothing_is_lost_the_answer_is_one_sided():
    found = judge_break(WORLDS["equal"], studies=20)

    assert found["covers"] == 1
    assert found["one_sided"] >= 0.95
