"""A noise scale that an earlier run measured becomes the setting of a rule."""

import pytest

from sweeper.planning.plan import plan
from sweeper.store.ledger import Ledger

MEASURED = ("lr_rule=saturating", "lr_rule.noise_scale=measured")
RUN = "0a1b2c3d4e5f"


@pytest.fixture
def ledger(tmp_path):
    ledger = Ledger(tmp_path / "results")
    ledger.prepare()
    for run_id, noise_scale in ((RUN, 1e4), ("00000000000f", None)):
        row = {"run_id": run_id, "attempt": 1, "outcome": "finished", "noise_scale": noise_scale}
        ledger.publish(row, [])
    return ledger


def test_saturating_takes_the_noise_scale_of_an_earlier_run(ledger, grid):
    """McCandlish at a noise scale of 10,000: 0.1 at 256 becomes 1.74027 at 7,680."""
    base = ("batch=7680", "base_lr=0.1", "base_batch=256")
    measured = grid(*MEASURED, *base, f"+lr_rule.measured_in={RUN}")
    given = grid("lr_rule=saturating", "lr_rule.noise_scale=10000", *base)

    (spec,) = plan(measured, ledger).specs

    assert spec.schedule.peak_lr == pytest.approx(1.74027, rel=1e-5)
    assert spec.run_id == plan(given, ledger).specs[0].run_id


@pytest.mark.parametrize("words", [(), ("+lr_rule.measured_in=00000000000f",)])
def test_a_run_that_measured_nothing_is_refused(ledger, grid, words):
    with pytest.raises(ValueError, match=r"^lr_rule\.noise_scale=measured needs "):
        plan(grid(*MEASURED, *words), ledger)
