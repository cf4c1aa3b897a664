"""The noisy quadratic after one step: the best rate of every batch is known beforehand.

With equal curvatures 1 and a noise scale of n examples, the expected loss after one step from
weights 1 is ``((1 - lr)**2 + lr**2 n / B) / 2`` per weight (Zhang et al. 2019, arXiv:1907.04164,
equation 3), lowest at ``lr = 1 / (1 + n / B)``: McCandlish's saturating rule, which bends at n.
"""

import numpy as np
import pytest

from analysis.stats.laws import compare_rules
from analysis.tuning.rates import joint_table, tuned_optima
from analysis.tuning.studies import load_tuned

NOISE_SCALE = 256
BATCHES = (64, 256, 1024)


@pytest.mark.slow
def test_tuned_rates_and_critical_batch_come_out_within_their_intervals(tune, results):
    """All rates at once, which the joint intervals are for, and the batch where they bend."""
    tune(
        f"batch={','.join(map(str, BATCHES))}", "seed=range(6)", "base_lr=interval(0.02, 1.5)",
        "model.decay=0", f"model.noise_scale={NOISE_SCALE}", "data.length=64",
        "data.num_train_examples=${batch}", "hydra.sweeper.objective=val_loss",
        "hydra/sweeper/sampler=quasi_random", "n_trials=5",
    )  # fmt: skip

    (tuned,) = load_tuned(results)
    optima = tuned_optima(tuned, "peak_lr", np.random.default_rng(0))
    table = joint_table(optima, log=False)
    known = 1 / (1 + NOISE_SCALE / table["global_batch"])
    critical = compare_rules(optima).bends["saturating"]
    assert list(table["global_batch"]) == list(BATCHES)
    assert (table["joint_low"] <= known).all()
    assert (table["joint_high"] >= known).all()
    assert critical.low < NOISE_SCALE < critical.high
