"""Intervals of tuned rates: at all batches at once, over seeds, and without luck's pull."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from optuna.distributions import FloatDistribution
from scipy.stats import norm
from scipy.stats import t as student
from test_tuning import simulated

from analysis.stats.optimum import Optima
from analysis.tuning.rates import joint_table, nearest_halves, tuned_optima


@pytest.fixture
def rng():
    return np.random.default_rng(3)


def test_joint_intervals_are_wider_by_the_student_factors(rng):
    """Draws are spread for 95 %, ``s t(0.975) / z(0.975)``; joint ends lie at ``s t(level)``."""
    batches, seeds, spread = 5, 12, 0.01
    to_95 = student.ppf(0.975, seeds - 1) / norm.ppf(0.975)
    draws = 0.5 + spread * to_95 * rng.standard_normal((100_000, batches))
    optima = Optima(
        batches=np.arange(1.0, 1 + batches), best=np.full(batches, 0.5), draws=draws,
        low_edge=np.zeros(batches), high_edge=np.ones(batches), num_seeds=seeds,
        note="",
    )  # fmt: skip

    table = joint_table(optima, log=False)

    half = spread * student.ppf(0.5 + 0.95 ** (1 / batches) / 2, seeds - 1)
    assert table["joint_high"].to_numpy() == pytest.approx(0.5 + half, abs=0.05 * half)
    assert table["joint_low"].to_numpy() == pytest.approx(0.5 - half, abs=0.05 * half)
    assert (table["low"] > table["joint_low"]).all()


def test_few_seeds_have_no_joint_interval(rng):
    single = simulated(seeds=(0,), batches=(256, 512))

    table = joint_table(tuned_optima(single, "base_lr", rng, draws=50), log=True)

    assert table[["joint_low", "joint_high"]].isna().all(axis=None)


def test_a_seed_is_drawn_at_all_batches_together(rng):
    """Two batches whose trials are alike have the same draws."""
    tuned = simulated(batches=(256,))
    other = tuned.trials.assign(global_batch=512, study=tuned.trials["study"] + " again")

    optima = tuned_optima(replace(tuned, trials=pd.concat([tuned.trials, other])), "base_lr", rng)

    assert (optima.draws[:, 0] == optima.draws[:, 1]).all()


def test_trials_that_were_lucky_do_not_draw_the_optimum_towards_them():
    """Noise grows with the rate: the half of the lowest losses has too many of high rates."""
    rng, rates = np.random.default_rng(0), np.linspace(-1, 1, 40)
    loss = rates**2 + (1 + rates) * rng.standard_normal((400, 40))
    frame = pd.DataFrame(
        {"study": np.repeat(np.arange(400), 40), "seed": np.repeat(np.arange(400), 40),
         "base_lr": np.tile(rates, 400), "loss": loss.ravel()}
    )  # fmt: skip

    halves = nearest_halves(frame, {"base_lr": FloatDistribution(-1, 1)})

    assert all(len(half.loss) == 20 for half in halves)
    assert len({tuple(half.places[:, 0]) for half in halves}) == 1
