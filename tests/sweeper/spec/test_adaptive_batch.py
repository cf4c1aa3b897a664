"""The batch and rate of Alfarra et al. 2020, against numbers worked out by hand and by search."""

import numpy as np
import pytest

from sweeper.spec.run_spec import run_spec
from sweeper.spec.schedules import AdaptiveBatch


def schedule(**changed):
    settings = {"smoothness": 1.0, "largest_smoothness": 10.0, "strong_convexity": 0.1}
    settings |= {"squared_distance": 0.01, "max_batch": 100}
    return AdaptiveBatch(**settings | changed)


def test_the_best_batch_is_that_of_the_formula_and_of_a_search():
    """n = 100 and h = 0.05: c = 100 and 100 * 91 / (91 + 99) = 47.8947."""
    batches = np.linspace(1, 99, 98_001)
    costs = [batch / schedule().best_rate(batch, 0.05, 100) for batch in batches]

    assert schedule().best_batch(0.05, 100) == pytest.approx(47.8947, abs=1e-4)
    assert batches[np.argmin(costs)] == pytest.approx(47.8947, abs=2e-3)


@pytest.mark.parametrize(("mean_square", "best"), [(0.0045, 1), (0.001, 1), (1e9, 100)])
def test_the_best_batch_is_from_one_to_all(mean_square, best):
    """c = 9 is the difference of the smoothnesses."""
    assert schedule().best_batch(mean_square, 100) == pytest.approx(best, rel=1e-6)


def test_the_rate_is_half_of_the_smaller_of_both_bounds():
    """At 50 of 100: L = (4900 + 500) / 4950 and s = 0.05 / 99; with h = 1 it is s = 1 / 99."""
    assert schedule().best_rate(50, 0.05, 100) == pytest.approx(4950 / 5400 / 2)
    assert schedule().best_rate(50, 1.0, 100) == pytest.approx(0.01 * 0.1 * 99 / 2 / 2)
    assert schedule().best_rate(100, 1.0, 100) == pytest.approx(1 / 2)


@pytest.mark.parametrize("most", [31, 513])
def test_a_largest_batch_below_the_first_or_above_the_epoch_is_refused(grid, most):
    (config,) = grid("+experiment=alfarra2020", "batch=32", "seed=0", f"schedule.max_batch={most}")

    with pytest.raises(ValueError, match=rf"^schedule\.max_batch must be .* got .*={most}\. Chan"):
        run_spec(config)
