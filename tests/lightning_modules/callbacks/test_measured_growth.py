"""The batch grows where its noise is above it."""

from types import SimpleNamespace

import pytest

from lightning_modules.callbacks.measured_noise import MeasuredGrowth


@pytest.fixture
def grown(fit, line, plan, growing, batches):
    """The epochs at which the batch of 4 grew in 3 epochs of a constant noise scale."""

    def run(noise_scale, *, growths_allowed=9, warmup_epochs=0.0):
        measured = plan(examples=16, schedule=growing(growth="measured"), noise_span=2)
        noise = SimpleNamespace(columns={"noise_scale": noise_scale})
        growth = MeasuredGrowth(
            measured, noise, growths_allowed=growths_allowed, warmup_epochs=warmup_epochs
        )
        fit(line(), [growth], batches(2), epochs=3)
        assert growth.state_dict() == {"grown": list(measured.grown), "sizes": []}
        return measured.grown

    return run


@pytest.mark.parametrize(
    ("noise_scale", "epochs"),
    [(None, ()), (4.0, ()), (4.5, (1,)), (8.0, (1,)), (8.5, (1, 2))],
)
def test_the_batch_grows_after_epochs_whose_noise_scale_was_above_it(grown, noise_scale, epochs):
    """From 4 to 8 to 16; what the last epoch decides is for the one after it."""
    assert grown(noise_scale)[:2] == epochs


def test_the_batch_grows_no_more_often_than_it_may(grown):
    assert grown(1e9, growths_allowed=1) == (1,)


def test_the_batch_stays_during_the_warmup(grown):
    assert grown(4.5, warmup_epochs=1.5) == (2,)
