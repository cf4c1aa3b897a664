"""Estimators recover the truth of simulated studies, and their 95 % intervals hold it as often."""

import pytest
from simulated_estimates import KINDS, coverage

#: Those whose model is wrong by intent, or whose curves are too short.
REFUSED = {
    "warmup exponent, flat branch",
    "rate exponent, one wide grid",
    "critical batch, 2 epochs and more",
}


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in REFUSED])
def test_the_median_of_40_studies_is_the_truth_and_intervals_hold_it(kind):
    """With 95 % coverage, fewer than 80 % of 40 has a probability below 0.001."""
    refused, held, median = coverage(kind, studies=40, draws=200)

    assert refused <= 0.25
    assert held >= 0.8
    assert median == pytest.approx(KINDS[kind][1], rel=0.15, abs=0.002)


@pytest.mark.parametrize("kind", REFUSED)
def test_what_does_not_fit_is_refused(kind):
    refused, _, _ = coverage(kind, studies=20, draws=50)

    assert refused >= 0.8


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [3, 5])
@pytest.mark.parametrize("kind", KINDS)
def test_intervals_hold_the_truth_in_90_to_98_percent_of_300_studies_or_are_refused(kind, seeds):
    refused, held, _ = coverage(kind, studies=300, draws=400, seeds=seeds)

    assert refused >= 0.9 or 0.90 <= held <= 0.98
