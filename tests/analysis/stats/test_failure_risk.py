"""The rate of equal risk of divergence, from simulated runs of a known law."""

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit

from analysis.stats.failure_risk import fit_risk


def simulated(rng, runs=1500, power=0.5):
    batch = 2.0 ** rng.integers(5, 12, runs)
    rate, warmup = np.exp(rng.uniform(-6, 0, runs)), rng.uniform(0, 0.7, runs)
    odds = 2.5 * (np.log(rate) - power * np.log(batch / 256)) - 1.4 * warmup + 4
    lost = np.where(rng.random(runs) < expit(odds), "diverged", "finished")
    return pd.DataFrame(
        {"global_batch": batch, "peak_lr": rate, "warmup_epochs": warmup, "outcome": lost}
    )


@pytest.mark.parametrize("runs", [200, 1500])
def test_the_intervals_of_the_law_and_of_the_warmup_hold(runs):
    rng, settings = np.random.default_rng(runs), ["peak_lr", "global_batch", "warmup_epochs"]

    found = [fit_risk(simulated(rng, runs), settings) for _ in range(200)]

    power = [rate.low <= 0.5 <= rate.high for _, rate in found]
    warmup = [odds["low"][2] <= -1.4 <= odds["high"][2] for odds, _ in found]
    assert 0.93 <= np.mean(power) <= 0.995
    assert 0.93 <= np.mean(warmup) <= 0.995


def test_few_failures_have_no_law():
    runs = simulated(np.random.default_rng(0), 40)

    with pytest.raises(
        ValueError, match="20 runs or more that diverged, and as many that finished"
    ):
        fit_risk(runs, ["peak_lr", "global_batch", "warmup_epochs"])
