"""Estimators on published tables give the published, or hand-computed, exponents and batches."""

import numpy as np
import pandas as pd
import pytest
from simulated_estimates import replicates_with

from analysis.papers.goyal2017 import PUBLISHED
from analysis.stats.breaking_batch import breaking_batch
from analysis.stats.critical_batch import critical_batch

#: MLPerf reference convergence points, ResNet-50 to 75.9 % (mlcommons/logging,
#: training_4.0.0/rcps_resnet.json): batch, epochs to target (mean, standard deviation, runs).
MLPERF = [
    (1632, 35.0, 1.12, 17), (3264, 35.2, 0.77, 15), (4096, 40.0, 1.05, 10), (8192, 42.0, 1.05, 10),
    (13056, 45.4, 0.70, 10), (32768, 56.0, 0.47, 10), (49152, 68.0, 0.67, 10),
    (58880, 79.9, 0.88, 10), (65536, 84.5, 0.97, 10), (67840, 85.9, 0.65, 28),
]  # fmt: skip


def test_mlperf_critical_batch_of_resnet_is_46_000_and_its_interval_that_of_the_batches_scatter():
    """Every point is within 7 % of the hyperbola, which its seeds reject. Pairs of batches drawn
    with replacement gave an interval of 40,000 to 52,000.
    """
    rows = [
        (batch, float(epochs), True)
        for batch, *spread in MLPERF
        for epochs in replicates_with(*spread)
    ]
    columns = ["global_batch", "examples_to_target", "reached_target"]
    batches, means, _, counts = np.array(MLPERF).T
    slope, intercept = np.polyfit(batches, means, 1, w=np.sqrt(counts) / means)

    fit = critical_batch(pd.DataFrame(rows, columns=columns))

    found = fit.critical_batch
    assert found.value == pytest.approx(intercept / slope)
    assert (found.low, found.high) == pytest.approx((40_000, 52_000), rel=0.04)
    assert "from the scatter about the hyperbola" in found.note
    assert fit.lack_of_fit_p < 1e-6
    assert fit.farthest == pytest.approx(0.07, abs=0.005)


@pytest.mark.parametrize(
    ("margin", "batch", "low", "high"),
    [(0.005, 10_400, 8_192, 16_384), (0.010, 14_660, 13_120, 15_080)],
)
def test_goyal_accuracy_breaks_at_10_400_and_14_660(margin, batch, low, high):
    linear = [p for p in PUBLISHED if p.point.warmup == 5 and p.point.rule == "linear"]
    rows = [
        ("finished", p.point.batch, accuracy)
        for p in linear
        for accuracy in replicates_with(p.accuracy, p.spread, 5)
    ]
    runs = pd.DataFrame(rows, columns=["outcome", "global_batch", "val_accuracy"])

    found = breaking_batch(runs, np.random.default_rng(0), margin)

    assert found.value == pytest.approx(batch, rel=0.01)
    assert (found.low, found.high) == pytest.approx((low, high), rel=0.001)
