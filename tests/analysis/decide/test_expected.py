"""Expected intervals are right in the middle, also where the noise is not what tests assume."""

import numpy as np
import pytest
from simulated_verdicts import NOISES, SPREAD

from analysis.decide.claims import expected_interval, fewest_seeds_by_rank
from analysis.decide.proposal import interval_width
from analysis.stats.contrasts import Arms, Contrasts, weigh_contrasts

FOUR = Contrasts.pairs((1, 0), (1, 2), (1, 3), num_arms=4)


def arms_of(values) -> Arms:
    counts = np.full(len(values), values.shape[1])
    return Arms(values.mean(axis=1), values.var(axis=1, ddof=1), counts)


@pytest.mark.parametrize("noise", ["normal", "heavy-tailed", "bad seed"])
@pytest.mark.parametrize("spreads", [(1, 1, 1, 1), (0.5, 0.8, 1.3, 2)])
def test_intervals_become_as_wide_as_was_expected(noise, spreads):
    rng = np.random.default_rng(1)
    ratios: list[float] = []
    for _ in range(200):
        drawn = SPREAD * np.array(spreads)[:, None] * NOISES[noise]((4, 10), rng)
        then = expected_interval(FOUR, arms_of(drawn[:, :5]), np.full(4, 10))
        found = weigh_contrasts(FOUR, arms_of(drawn))
        ratios.append(float(found.high - found.low) / interval_width(then))

    assert 0.85 < np.median(ratios) < 1.2
    assert np.quantile(ratios, 0.1) > 0.6
    assert np.quantile(ratios, 0.9) < 2.2


def test_an_arm_that_was_not_run_has_the_spread_of_the_others():
    rng = np.random.default_rng(2)
    drawn = rng.normal(0.9, SPREAD, (4, 5))
    arms = arms_of(drawn)
    without = Arms(
        np.append(arms.means[:3], np.nan), np.append(arms.variances[:3], np.nan),
        np.array([5, 5, 5, 0]),
    )  # fmt: skip

    then = expected_interval(FOUR, without, np.full(4, 5))

    width = interval_width(expected_interval(FOUR, arms, np.full(4, 5)))
    assert 0.5 < interval_width(then) / width < 2
    single = Arms(np.array([0.9, 0.8]), np.array([np.nan, np.nan]), np.array([1, 1]))
    unknown = expected_interval(Contrasts.pairs((0, 1)), single, np.array([5, 5]))
    assert np.isnan(interval_width(unknown))


def test_ranks_of_two_arms_need_four_seeds_alone_and_six_among_twelve_claims():
    assert fewest_seeds_by_rank(2, 0.025) == 4
    assert fewest_seeds_by_rank(2, 0.025 / 12) == 6
