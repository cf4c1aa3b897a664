"""Questions asked after each seed: few are answered wrongly, and what is answered costs no more."""

import numpy as np
import pytest
from scipy import stats
from simulated_questions import alike, asked, best_of, no_worse

from analysis.sequential.looks import Looks
from analysis.sequential.rule import Best, Bounds, take_looks
from analysis.stats.contrasts import Contrasts

LOOKS = Looks.plan(1, first=3, last=8)
NOTHING = {
    "best": best_of(0, 0),
    "no worse": no_worse(0, -1, -1, margin=1),
    "alike": alike(0, 1, margin=1),
}


def gaps(*means, seeds=8, noise=0.1):
    """Values with these means, and the same small noise in each study."""
    rng = np.random.default_rng(11)
    return np.array(means)[:, None] + noise * rng.standard_normal((len(means), seeds))


@pytest.mark.parametrize("noise", ["normal", "skewed, spreads 1 to 2"])
@pytest.mark.parametrize("kind", NOTHING)
def test_where_nothing_differs_no_more_than_one_in_twenty_is_answered(kind, noise):
    """`python -m benchmarks.sequential` counts it in 1,000 studies of each kind."""
    studies = 150
    wrong = asked(NOTHING[kind], noise, LOOKS, studies).wrong

    assert stats.binom.sf(round(wrong * studies) - 1, studies, 0.05) > 0.01


def test_what_differs_is_answered_with_fewer_runs_than_the_whole_grid():
    found = asked(best_of(0, 3), "normal", LOOKS, 60)

    assert found.right > 0.8
    assert found.runs < 0.8 * 16


def test_values_in_parts_give_the_looks_that_all_of_them_give():
    """A study that is stopped after any seed, and goes on, is the study that was not stopped."""
    values = gaps(0, 0.1, 0.2, noise=0.15)
    rule, seen = Best(3, LOOKS), np.full_like(values, np.nan)
    course = take_looks(rule, seen, 0.05)
    while course.needs.any():
        seen[course.needs, : course.upto] = values[course.needs, : course.upto]
        rule = Best(3, LOOKS)
        course = take_looks(rule, seen, 0.05)

    whole = Best(3, LOOKS)
    at_once = take_looks(whole, values, 0.05)

    assert (rule.best, course.looks, course.used.tolist()) == (
        whole.best, at_once.looks, at_once.used.tolist(),
    )  # fmt: skip
    assert 1 < course.looks < 6


def test_an_arm_that_is_out_needs_no_more_seeds():
    rule = Best(3, LOOKS)

    course = take_looks(rule, gaps(-3, 0, 0.1, noise=0.2), give_up=0.0)

    assert rule.in_it.tolist() == [False, True, True]
    assert course.used[0] < course.used[1] == course.used[2]


def test_arms_that_are_close_are_answered_within_a_margin():
    exact, within = Best(2, LOOKS), Best(2, LOOKS, margin=0.5)

    take_looks(exact, gaps(0, 0.01), give_up=0.0)
    take_looks(within, gaps(0, 0.01), give_up=0.0)

    assert exact.best is None
    assert within.best is not None


def test_what_each_of_the_others_is_below_some_other_is_best_without_a_direct_comparison():
    """The first is above the second, and the second above the third, whose noise is the first's."""
    rng = np.random.default_rng(2)
    wide = rng.standard_normal(8)
    values = np.stack([3 + wide, 2 + wide + 0.05 * rng.standard_normal(8), 1 + wide])
    rule = Best(3, LOOKS)

    take_looks(rule, values, give_up=0.0)

    assert rule.best == 0


def test_seeds_that_would_hardly_answer_it_are_not_made():
    hopeless, never = Best(2, LOOKS), Best(2, LOOKS)

    course = take_looks(hopeless, gaps(0, 0), give_up=0.05)

    assert course.is_hopeless
    assert course.seeds < 8
    assert not take_looks(never, gaps(0, 0), give_up=0.0).is_hopeless


def test_an_arm_with_a_diverged_run_is_compared_no_more():
    values = gaps(0, 1, 2)
    values[2, 1] = np.inf
    rule = Best(3, LOOKS)

    take_looks(rule, values, give_up=0.0)

    assert rule.best == 1
    assert rule.lost.tolist() == [False, False, True]


def test_one_arm_is_not_best_for_the_others_having_diverged():
    values = gaps(0, 1)
    values[0, 2] = np.inf
    rule = Best(2, LOOKS)

    course = take_looks(rule, values, give_up=0.05)

    assert rule.best is None
    assert not course.needs.any()


@pytest.mark.parametrize(
    ("means", "is_any", "answer"),
    [
        ((1, 0, -1), False, True),
        ((1, 0, 2), False, False),
        ((1, 2, -1), True, True),
        ((1, 2, 3), True, False),
    ],
)
def test_all_contrasts_or_any_of_them_decide_a_claim(means, is_any, answer):
    contrasts = Contrasts.pairs((0, 1), (0, 2), num_arms=3, is_any=is_any)
    rule = Bounds(contrasts, LOOKS)

    take_looks(rule, gaps(*means), give_up=0.0)

    assert rule.answer is answer


def test_a_claim_is_contradicted_by_the_contrasts_that_did_not_diverge_but_not_reproduced():
    contrasts = Contrasts.pairs((0, 1), (0, 2), num_arms=3)
    holds, fails = gaps(1, 0, 0), gaps(1, 2, 0)
    holds[2, 0] = fails[2, 0] = np.inf
    reproduced, contradicted = Bounds(contrasts, LOOKS), Bounds(contrasts, LOOKS)

    take_looks(reproduced, holds, give_up=0.0)
    take_looks(contradicted, fails, give_up=0.0)

    assert reproduced.answer is None
    assert contradicted.answer is False


def test_each_contrast_for_itself_has_an_answer_of_its_own():
    contrasts = Contrasts.pairs((1, 0), (2, 0), num_arms=3, lower=-1)
    rule = Bounds(contrasts, LOOKS, is_each=True)

    course = take_looks(rule, gaps(0, 0, -3), give_up=0.0)

    assert rule.answers == [True, False]
    assert not course.needs.any()
