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
from analysis.tuning.rates import joint_table, tuned_optima
from analysis.tuning.studies import Tuned


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


def test_a_best_that_moves_with_the_seed_widens_the_interval(rng):
    """At all batches alike: what trials of one seed do not show."""
    tuned = simulated(batches=(256, 512, 1024))
    moved = np.exp(np.random.default_rng(0).normal(scale=0.3, size=20))
    moved = moved[tuned.trials["seed"].astype(int)]
    trials = tuned.trials.assign(
        base_lr=tuned.trials["base_lr"] * moved, peak_lr=tuned.trials["peak_lr"] * moved
    )

    draws = [
        tuned_optima(t, "base_lr", rng, draws=100).draws
        for t in (tuned, replace(tuned, trials=trials))
    ]

    plain, apart = (np.log(of).std(axis=0) for of in draws)
    assert (apart > 2 * plain).all()


def test_trials_far_from_the_best_do_not_draw_it_towards_them():
    """The loss rises steeply above the best rate, up to a thousand times what it is there."""
    rng = np.random.default_rng(0)
    rates = np.exp(rng.uniform(-6, 4, size=(2, 3, 40)))
    gap = np.log(rates / np.array([0.1, 0.4])[:, None, None])
    loss = 1 + np.where(gap < 0, 0.05 * gap**2, np.expm1(2 * np.maximum(gap, 0)) ** 2 / 40)
    loss = np.minimum(loss, 1000) + 0.01 * rng.standard_normal(loss.shape)
    batch = np.repeat([256, 1024], 120)
    seed = np.tile(np.repeat(range(3), 40), 2)
    trials = pd.DataFrame({
        "study": [f"{b} {s}" for b, s in zip(batch, seed, strict=True)], "trial": 0,
        "outcome": "finished", "global_batch": batch, "seed": seed, "loss": loss.ravel(),
        "base_lr": rates.ravel(), "peak_lr": rates.ravel(),
    })  # fmt: skip
    space = {"base_lr": FloatDistribution(1e-3, 60, log=True)}

    table = tuned_optima(Tuned(trials, space, "min(val_loss)", {}), "peak_lr", rng, 100).table()

    assert np.log(table["best"].to_numpy() / [0.1, 0.4]) == pytest.approx([0, 0], abs=0.25)
