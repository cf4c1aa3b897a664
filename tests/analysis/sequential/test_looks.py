"""Intervals that hold at all looks together: published bounds, and simulated studies."""

import numpy as np
import pytest
from scipy import stats

from analysis.sequential.looks import Interval, Looks, critical_values


@pytest.mark.parametrize(
    ("first", "second"), [(2.178, 2.178), (2.797, 1.977)], ids=["Pocock", "O'Brien and Fleming"]
)
def test_two_looks_at_many_replicates_have_the_published_bounds(first, second):
    """Jennison & Turnbull 2000, tables 2.1 and 2.3: two looks, 5 % on both sides."""
    spent = 2 * stats.norm.sf(first)
    power = np.log2(0.05 / spent)  # so that half of the replicates spend that

    found = critical_values((20, 40), 0.05, power)

    tails = [stats.t.sf(t, n - 1) for t, n in zip(found, (20, 40), strict=True)]
    assert stats.norm.isf(tails) == pytest.approx([first, second], abs=0.015)


def test_few_replicates_go_beyond_at_each_look_as_often_as_is_spent():
    looks, level, studies = (3, 4, 6), 0.05, 100_000
    values = np.random.default_rng(3).standard_normal((studies, 6))
    beyond = np.zeros(studies, dtype=bool)
    shares = []

    for n, most in zip(looks, critical_values(looks, level, 2.0), strict=True):
        t = stats.ttest_1samp(values[:, :n], 0, axis=1).statistic
        beyond |= np.abs(t) > most
        shares.append(beyond.mean())

    assert shares == pytest.approx([level * (n / 6) ** 2 for n in looks], rel=0.06)


def test_one_look_is_students_test():
    assert critical_values((7,), 0.05) == pytest.approx((stats.t.isf(0.025, 6),))


def test_an_interval_is_the_mean_with_so_many_standard_errors():
    looks, values = Looks((3, 5), level=0.05), np.array([1.0, 2.0, 4.0])

    interval = Interval.from_seeds(values, looks, 0.05)

    half = critical_values((3, 5), 0.05)[0] * values.std(ddof=1) / np.sqrt(3)
    assert (interval.low, interval.high) == pytest.approx((7 / 3 - half, 7 / 3 + half))


def test_values_that_are_all_the_same_decide_nothing():
    interval = Interval.from_seeds(np.full(4, 0.1), Looks((4, 6)), 0.05)

    assert (interval.low, interval.high) == (-np.inf, np.inf)


def test_the_chance_of_an_answer_is_that_of_the_seeds_to_come():
    """The predicted distribution of the last mean, drawn."""
    values, looks = np.array([0.2, 1.1, 0.7, 0.4]), Looks((4, 9), level=0.05)
    interval, width = Interval.from_seeds(values, looks, 0.05), looks.half_width(9, 0.05)
    rng, draws = np.random.default_rng(5), 200_000
    spread = values.std(ddof=1)

    chance = interval.chance_between(0.0, np.inf, 9, width)

    scale = spread * np.sqrt(3 / rng.chisquare(3, draws))
    truth = values.mean() + scale / 2 * rng.standard_normal(draws)
    to_come = truth + scale / np.sqrt(5) * rng.standard_normal(draws)
    last = (4 * values.mean() + 5 * to_come) / 9
    assert chance == pytest.approx(np.mean(last - width * spread / 3 > 0), abs=0.005)


def test_looks_begin_at_the_first_and_end_at_the_last():
    assert Looks.plan(2, first=3, last=8).at == (3, 5, 7, 8)
    assert Looks.plan(1, first=5, last=4).at == (4,)
