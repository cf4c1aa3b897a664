"""Where nothing differs, a family of claims has a false verdict in fewer than 7 % of studies."""

import numpy as np
import pytest
from scipy import stats
from simulated_verdicts import NOISES, decided, judged, share_false, values_at

from analysis.papers.goyal2017 import PAPER as GOYAL
from analysis.papers.mccord2021 import PAPER as MCCORD
from analysis.stats.contrasts import ONE_SIDED, Arms, Contrasts, weigh_contrasts

PAPERS = {"mccord2021": MCCORD, "goyal2017": GOYAL}


def equal(_) -> float:
    return 0.97


def points_of(paper):
    return [point for claim in paper.claims for point in claim.points]


def upper_limit(count: int, total: int) -> float:
    """Clopper and Pearson's upper 95 % limit of a share."""
    return float(stats.beta.ppf(0.95, count + 1, total - count))


@pytest.mark.parametrize("seeds", [3, 5, 10])
@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("name", PAPERS)
def test_claims_where_nothing_differs_are_hardly_ever_decided(name, noise, seeds):
    """Of 500 studies; the exponent of the best warmup, which is slow, is in the next test."""
    paper = PAPERS[name]
    values = values_at(points_of(paper), equal, noise, seeds, studies=500)

    wrong = share_false(paper.claims, judged(paper.claims, values, draws=0))

    assert upper_limit(int(wrong.sum()), 500) < 0.07


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_the_exponent_adds_no_false_verdict_to_its_family(seeds):
    values = values_at(points_of(MCCORD), equal, "normal", seeds, studies=300, seed=1)

    wrong = share_false(MCCORD.claims, judged(MCCORD.claims, values, draws=400))

    assert upper_limit(int(wrong.sum()), 300) < 0.07


@pytest.mark.parametrize("counts", [(3, 4, 6, 8, 10, 12), tuple(range(2, 22))])
def test_judging_again_after_each_addition_of_seeds_adds_no_false_verdict(counts):
    """Goyal's claims in 500 studies at 6 and at 20 looks, each corrected for those so far."""
    values = values_at(points_of(GOYAL), equal, "normal", counts[-1], studies=500, seed=3)
    once, counted = np.zeros(500, dtype=bool), np.zeros(500, dtype=bool)
    for look, count in enumerate(counts, 1):
        found = judged(GOYAL.claims, {p: v[:, :count] for p, v in values.items()}, draws=0)
        at_looks = {
            name: tuple(np.minimum(1, look * p) for p in both) for name, both in found.items()
        }
        once |= share_false(GOYAL.claims, found)
        counted |= share_false(GOYAL.claims, at_looks)

    assert once.mean() > 0.1
    assert upper_limit(int(counted.sum()), 500) < 0.08


def test_a_best_warmup_that_is_two_deviations_ahead_is_mostly_seen():
    """Power at five seeds: of the claim alone, and of it in its family."""
    values = values_at(
        points_of(MCCORD), lambda p: 0.97 + 0.008 * (p.warmup == 5), "normal", 5, studies=1000
    )
    text = "At 7,680, 5 epochs of warmup are best"

    found = judged(MCCORD.claims, values, draws=0)

    alone = (found[text][0] < ONE_SIDED).mean()
    in_family = next(yes.mean() for name, yes, _ in decided(found) if name == text)
    assert 0.5 < alone < 0.7
    assert 0.05 < in_family < 0.2


@pytest.mark.parametrize("count", [2, 3, 6, 12])
def test_the_best_of_equal_recipes_seldom_beats_the_baseline(count):
    """A best of k that is judged as if it had been named beforehand wins in up to 46 %."""
    rng = np.random.default_rng(count)
    drawn = rng.normal(size=(2000, count, 3))
    arms = Arms(drawn.mean(axis=2), drawn.var(axis=2, ddof=1), np.full(count, 3))
    others = [(i, 0) for i in range(1, count)]

    found = weigh_contrasts(Contrasts.pairs(*others, num_arms=count, is_any=True), arms)

    assert (found.p_for < ONE_SIDED).mean() < 0.03
    assert (found.p_against < ONE_SIDED).mean() < 0.03
