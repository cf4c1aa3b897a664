"""Contrasts of arms against SciPy's tests and closed forms."""

from math import comb

import numpy as np
import pytest
from scipy import stats
from simulated_estimates import replicates_with

from analysis.stats.contrasts import Arms, Contrasts, correct_by_holm, rank_test, weigh_contrasts
from analysis.stats.replicates import format_share, validation_size, wilson_interval


def values(*means, spread=1.0, seeds=5):
    return [replicates_with(mean, spread, seeds) for mean in means]


def test_a_pair_is_welchs_one_sided_test_with_its_interval():
    first, second = np.array([3.0, 4.0, 8.0]), np.array([1.0, 2.0, 2.5, 0.5])

    found = weigh_contrasts(Contrasts.pairs((0, 1)), Arms.from_seeds([first, second]))

    test = stats.ttest_ind(first, second, equal_var=False, alternative="greater")
    both = stats.ttest_ind(first, second, equal_var=False).confidence_interval(0.95)
    assert found.p_for == pytest.approx(test.pvalue)
    assert found.p_against == pytest.approx(1 - test.pvalue)
    assert (found.low, found.high) == pytest.approx((both.low, both.high))


def test_all_need_the_largest_p_value_and_any_needs_one_at_its_share_of_the_level():
    """The contrary: for all, one at its share is against; for any, all must be."""
    arms = Arms.from_seeds(values(3.0, 0.0, 2.5, 9.0))
    pairs = [(0, 1), (0, 2), (0, 3)]
    alone = [weigh_contrasts(Contrasts.pairs(pair, num_arms=4), arms) for pair in pairs]

    every = weigh_contrasts(Contrasts.pairs(*pairs, num_arms=4), arms)
    some = weigh_contrasts(Contrasts.pairs(*pairs, num_arms=4, is_any=True), arms)

    assert (every.value, some.value) == pytest.approx((-6.0, 3.0))
    assert every.p_for == max(pair.p_for for pair in alone)
    assert every.p_against == pytest.approx(3 * min(pair.p_against for pair in alone))
    assert some.p_for == pytest.approx(3 * min(pair.p_for for pair in alone))
    assert some.p_against == max(pair.p_against for pair in alone)
    assert every.high < 0


def test_an_interval_excludes_zero_as_the_p_value_says():
    rng = np.random.default_rng(1)
    contrasts = Contrasts.pairs((0, 1), (0, 2), num_arms=3)

    for _ in range(200):
        found = weigh_contrasts(
            contrasts, Arms.from_seeds([rng.normal(1.5 * (i == 0), 1, 4) for i in range(3)])
        )
        assert (found.low > 0) == (found.p_for < 0.025)
        assert (found.high < 0) == (found.p_against < 0.025)


def test_between_two_bounds_is_two_one_sided_tests():
    """Schuirmann's test; beyond either bound at half the level."""
    contrasts = Contrasts.pairs((0, 1), lower=-0.5, upper=0.5)

    inside = weigh_contrasts(contrasts, Arms.from_seeds(values(0.1, 0.0, spread=0.1)))
    outside = weigh_contrasts(contrasts, Arms.from_seeds(values(2.0, 0.0, spread=0.1)))

    first, second = values(0.1, 0.0, spread=0.1)
    upper = stats.ttest_ind(first - 0.5, second, equal_var=False, alternative="less").pvalue
    assert inside.p_for == pytest.approx(upper)
    assert outside.p_against < 1e-6 < inside.p_for


def test_a_contrast_is_not_touched_by_an_arm_that_it_does_not_use():
    arms = Arms.from_seeds([*values(1.0, 0.0), np.array([])])

    found = weigh_contrasts(Contrasts.pairs((0, 1), num_arms=3), arms)

    without = weigh_contrasts(Contrasts.pairs((0, 1)), Arms.from_seeds(values(1.0, 0.0)))
    assert found.p_for == without.p_for


def test_studies_judged_at_once_are_as_judged_one_by_one():
    drawn = np.random.default_rng(0).normal(size=(7, 3, 4))
    arms = Arms(drawn.mean(axis=2), drawn.var(axis=2, ddof=1), np.array([4, 4, 4]))
    contrasts = Contrasts.pairs((0, 1), (0, 2), num_arms=3)

    found = weigh_contrasts(contrasts, arms)

    alone = [weigh_contrasts(contrasts, Arms.from_seeds(list(study))) for study in drawn]
    assert found.p_for == pytest.approx([study.p_for for study in alone])


def test_arms_that_are_equal_at_every_seed_have_the_binomial_error_of_the_validation_set():
    arms = Arms.from_seeds([np.full(3, 0.9), np.array([0.8, 0.9, 1.0])]).floor_variances(360)

    assert arms.variances[0] == pytest.approx(0.9 * 0.1 / 360, rel=0.1)
    assert arms.variances[1] == pytest.approx(0.01)
    assert Arms.from_seeds([np.ones(3)]).floor_variances(360).variances[0] > 0


@pytest.mark.parametrize(
    ("second", "bounds", "p_for"),
    [
        (np.full(5, -np.inf), {}, 1 / comb(10, 5)),  # five above five: one of 252 orders
        (np.full(3, -np.inf), {}, 1 / comb(6, 3)),  # three runs that diverged decide nothing
        (np.arange(5.0) + 0.5, {"lower": -10.0, "upper": 10.0}, 1 / comb(10, 5)),
    ],
    ids=["rank sum", "three", "both bounds"],
)
def test_ranks_of_two_arms_are_wilcoxons_rank_sum(second, bounds, p_for):
    """The worst values may be infinite."""
    arms = [np.arange(float(len(second))), second]

    found = rank_test(Contrasts.pairs((0, 1), **bounds), 0, arms, np.random.default_rng(0))

    assert found == (pytest.approx(p_for, rel=0.2, abs=0.002), 1.0)


def test_holm_multiplies_the_smallest_by_the_most_and_leaves_out_what_was_not_tested():
    found = correct_by_holm(np.array([0.01, np.nan, 0.03, 0.02]))

    assert found == pytest.approx([0.03, np.nan, 0.04, 0.04], nan_ok=True)


def test_the_validation_set_is_recognised_by_its_counts():
    assert validation_size(np.array([357, 358, 353]) / 360) == 360
    assert validation_size(np.array([1.0, 0.5])) is None  # of any even number
    assert validation_size(np.array([0.123456789123])) is None


def test_a_share_has_wilsons_interval():
    assert wilson_interval(0, 5) == pytest.approx((0.0, 0.4345), abs=1e-4)
    assert format_share(5, 5) == "5 of 5 (57 to 100 %)"


@pytest.mark.parametrize("value", [0.1, 0.7, 0.8])
def test_seeds_that_all_measured_the_same_are_not_told_apart_by_rounding(value):
    """The mean of three times 0.1 is not 0.1: a variance of 1e-34 would show any difference."""
    alike, other = np.full(3, value), np.full(3, 0.25)

    found = weigh_contrasts(Contrasts.pairs((0, 1)), Arms.from_seeds([alike, other]))

    assert np.isnan([found.p_for, found.p_against]).all()
