"""Estimators recover the truth of simulated studies, and their 95 % intervals hold it as often."""

import numpy as np
import pandas as pd
import pytest
from simulated_studies import simulated_runs

from analysis.stats.breaking import breaking_batch
from analysis.stats.diffusion import diffusion
from analysis.stats.equivalence import compare
from analysis.stats.optimum import best_lrs, best_warmups, exponent
from analysis.stats.replicates import Estimate
from analysis.stats.rules import compare_rules
from analysis.stats.target import critical_batch

SEEDS = 5
BATCHES = [3840, 7680, 15360, 30720, 61440]


def warmup_exponent(rng, draws) -> Estimate:
    """Best warmup 5 epochs at 7,680, growing as the square root of the batch."""

    def accuracy(batch: int, warmup: float) -> float:
        best = 5.0 * (batch / 7680) ** 0.5
        return 0.9 - 0.01 * (np.log(warmup + 1) - np.log(best + 1)) ** 2

    warmups = [0, 2, 5, 10, 20, 40]
    runs = simulated_runs(BATCHES, warmups, SEEDS, accuracy=accuracy, noise=0.002, rng=rng)
    return exponent(best_warmups(runs, rng, draws))


def lr_runs(rng, best_lr, noise=0.003) -> pd.DataFrame:
    """Five rates a factor of two apart around a rounded guess, at each batch."""
    rows = [
        ("finished", batch, factor * round(best_lr(batch), 1), seed)
        for batch in BATCHES
        for factor in (0.25, 0.5, 1, 2, 4)
        for seed in range(SEEDS)
    ]
    runs = pd.DataFrame(rows, columns=["outcome", "global_batch", "peak_lr", "seed"])
    best = np.array([best_lr(batch) for batch in runs["global_batch"]])
    accuracy = 0.9 - 0.02 * np.log(runs["peak_lr"] / best) ** 2
    return runs.assign(val_accuracy=accuracy + noise * rng.normal(size=len(runs)))


def lr_exponent(rng, draws) -> Estimate:
    """Best rate 1 at 3,840, growing as the square root of the batch."""
    return exponent(best_lrs(lr_runs(rng, lambda b: (b / 3840) ** 0.5), rng, draws))


def saturating_bend(rng, draws) -> Estimate:
    """Best rate 4 / (1 + 20,000 / batch)."""
    runs = lr_runs(rng, lambda b: 4 / (1 + 20_000 / b))
    return compare_rules(best_lrs(runs, rng, draws)).bends["saturating"]


def surge_peak(rng, draws) -> Estimate:
    """Best rate highest at batch 20,000."""
    runs = lr_runs(rng, lambda b: 4 / (0.5 * ((20_000 / b) ** 0.5 + (b / 20_000) ** 0.5)))
    return compare_rules(best_lrs(runs, rng, draws)).bends["surge"]


def break_of_accuracy(rng, draws) -> Estimate:
    """Flat up to 8,192, then 0.4 points lost per doubling: 0.5 points at 8,192 * 2**1.25."""
    runs = simulated_runs(
        [256 * 2**i for i in range(9)],
        [5],
        SEEDS,
        accuracy=lambda b, _: 0.76 - 0.004 * max(0.0, np.log2(b / 8192)),
        noise=0.0012,
        rng=rng,
    )
    return breaking_batch(runs, rng, 0.005, draws // 2)


def critical(rng, draws) -> Estimate:
    """Examples to target 30 million + 900 steps * batch, 2 % noise."""
    rows = [
        (batch, (3e7 + 900 * batch) * (1 + 0.02 * rng.normal()), True)
        for batch in [2048, 4096, 8192, 16384, 32768, 65536]
        for _ in range(SEEDS)
    ]
    columns = ["global_batch", "examples_to_target", "reached_target"]
    return critical_batch(pd.DataFrame(rows, columns=columns), rng, draws).critical_batch


def walk(rng, law) -> pd.DataFrame:
    """Five seeds of a law, each with its own factor and a slow random drift."""
    step = np.unique(np.geomspace(1, 10_000, 80).astype(int))
    seeds = []
    for seed in range(SEEDS):
        drift = np.exp(0.01 * np.cumsum(rng.normal(size=len(step))))
        distance = (1 + 0.1 * rng.normal()) * law(step) * drift
        seeds.append(pd.DataFrame({"seed": seed, "step": step, "distance": distance}))
    return pd.concat(seeds)


def diffusion_power(rng, draws) -> Estimate:
    """Distance from the start grows as step**0.35."""
    return diffusion(walk(rng, lambda t: t**0.35), rng, 2 * draws // 5).power


def difference(rng, _) -> Estimate:
    """Two arms 0.5 points apart with unequal spreads."""
    return compare(rng.normal(0.76, 0.002, SEEDS), rng.normal(0.755, 0.003, SEEDS)).difference


#: Each simulated study with its truth.
TRUTHS = {
    warmup_exponent: 0.5,
    lr_exponent: 0.5,
    saturating_bend: 20_000,
    surge_peak: 20_000,
    break_of_accuracy: 8192 * 2**1.25,
    critical: 3e7 / 900,
    diffusion_power: 0.35,
    difference: 0.005,
}


def coverage(simulate, truth: float, studies: int, draws: int) -> tuple[float, float]:
    """Share of the studies whose interval holds the truth, and the median estimate."""
    rng = np.random.default_rng(list(simulate.__name__.encode()))
    found = [simulate(rng, draws) for _ in range(studies)]
    return (
        float(np.mean([e.low <= truth <= e.high for e in found])),
        float(np.median([e.value for e in found])),
    )


@pytest.mark.parametrize("simulate", TRUTHS, ids=lambda s: s.__name__)
def test_the_median_of_40_studies_is_the_truth_and_intervals_hold_it(simulate):
    """With 95 % coverage, fewer than 33 of 40 has probability 0.0006."""
    held, median = coverage(simulate, TRUTHS[simulate], studies=40, draws=200)

    assert held >= 33 / 40
    assert median == pytest.approx(TRUTHS[simulate], rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("simulate", TRUTHS, ids=lambda s: s.__name__)
def test_intervals_hold_the_truth_in_90_to_98_percent_of_300_studies(simulate):
    held, median = coverage(simulate, TRUTHS[simulate], studies=300, draws=500)

    assert 0.90 <= held <= 0.98
    assert median == pytest.approx(TRUTHS[simulate], rel=0.05)
