"""Estimators on published tables give the published, or hand-computed, exponents and batches."""

import numpy as np
import pandas as pd
import pytest

from analysis.papers.goyal2017 import PUBLISHED
from analysis.stats.batch_limits import breaking_batch, critical_batch

#: MLPerf reference convergence points, ResNet-50 to 75.9 % (mlcommons/logging,
#: training_4.0.0/rcps_resnet.json): batch, epochs to target (mean, standard deviation, runs).
MLPERF = [
    (1632, 35.0, 1.12, 17), (3264, 35.2, 0.77, 15), (4096, 40.0, 1.05, 10), (8192, 42.0, 1.05, 10),
    (13056, 45.4, 0.70, 10), (32768, 56.0, 0.47, 10), (49152, 68.0, 0.67, 10),
    (58880, 79.9, 0.88, 10), (65536, 84.5, 0.97, 10), (67840, 85.9, 0.65, 28),
]  # fmt: skip


def replicates_with(mean: float, sd: float, n: int) -> np.ndarray:
    """Values with exactly this mean and standard deviation."""
    shape = np.linspace(-1, 1, n)
    return mean + sd * shape / shape.std(ddof=1)


def test_mlperf_critical_batch_is_about_45_000_by_replicates_and_the_hyperbola_does_not_fit():
    """Weighted by hand: S_min 958 steps, E_min 33.8 epochs, lack of fit F(8, 120) = 66."""
    rows = [
        (batch, float(epochs) * 1_281_167, True)
        for batch, *spread in MLPERF
        for epochs in replicates_with(*spread)
    ]
    columns = ["global_batch", "examples_to_target", "reached_target"]

    fit = critical_batch(pd.DataFrame(rows, columns=columns), np.random.default_rng(0))

    assert np.isnan(fit.critical_batch.value)
    assert fit.fewest_examples / fit.fewest_steps == pytest.approx(45_000, rel=0.02)
    assert fit.fewest_steps == pytest.approx(958, rel=0.02)
    assert fit.fewest_examples / 1_281_167 == pytest.approx(33.8, rel=0.02)
    assert fit.lack_of_fit == pytest.approx(66, rel=0.15)
    assert fit.lack_of_fit_p < 1e-6


@pytest.mark.parametrize(
    ("margin", "batch", "low", "high"),
    [(0.005, 10_400, 8_192, 16_384), (0.010, 14_500, 8_192, 32_768)],
)
def test_goyal_accuracy_breaks_at_10_400_and_14_500(margin, batch, low, high):
    linear = [p for p in PUBLISHED if p.point.warmup == 5 and p.point.rule == "linear"]
    rows = [
        ("finished", p.point.batch, accuracy)
        for p in linear
        for accuracy in replicates_with(p.accuracy, p.spread, 5)
    ]
    runs = pd.DataFrame(rows, columns=["outcome", "global_batch", "val_accuracy"])

    found = breaking_batch(runs, np.random.default_rng(0), margin)

    assert found.value == pytest.approx(batch, rel=0.01)
    assert (found.low, found.high) == (low, high)  # batches that were run
