"""AdaScale's rate follows each step's own gradient, and its progress ends the run.

Micro-batches of 1s and of 3s have the gradients w and 9 w: at w = 1 a mean square of 41, a squared
mean of 25, so a signal of 2 * 25 - 41 = 9 and a variance of (41 - 25) * 2 * 2 = 64. One step of 4
examples is worth (64 / 2 + 9) / (64 / 4 + 9) = 1.64 of 2, at every w.
"""

from types import SimpleNamespace

import pytest

from lightning_modules.callbacks.learning_rate import AdaScaleRate
from lightning_modules.callbacks.measured_noise import GradientNoise
from sweeper.spec.noise import AdaScale, NoiseAverage
from sweeper.spec.schedule import LRSchedule

GAIN = 1.64


@pytest.fixture
def rated(fit, line, plan, batches, noting):
    """The rates of the steps, 2 an epoch, until the run's end or the schedule's."""

    def run(*, total_steps, epochs=3, is_measured=True, **words):
        noise = GradientNoise(plan(), span=2) if is_measured else None
        adascale = AdaScale(
            schedule=LRSchedule(
                start_lr=0.1,
                peak_lr=0.1,
                warmup_epochs=0,
                warmup_steps=0,
                steps_per_epoch=4,
                decay=lambda epoch: 1 / (1 + epoch),
            ),
            base_batch=2,
            global_batch=4,
            average=NoiseAverage(smoothing=0.0),
        )
        rate = AdaScaleRate(
            adascale, noise or SimpleNamespace(step_noise=None), total_steps=total_steps
        )
        rates = noting(
            "on_before_optimizer_step",
            lambda trainer, _: trainer.optimizers[0].param_groups[0]["lr"],
        )
        steps = [*batches(1), *batches(1, 3.0)] * 2
        callbacks = [noise, rate, rates] if noise else [rate, rates]
        fit(line(), callbacks, steps, epochs=epochs, **words)
        return rates.noted, rate.state_dict()

    return run


def test_the_rate_is_the_gain_times_that_of_the_base_steps_behind(rated):
    """The schedule divides by 1 + epochs of 4 base steps: 0, 1.64, 3.28 and 4.92 are behind."""
    rates, _ = rated(total_steps=100, epochs=2)

    behind = [0, 1, 3, 4]
    assert rates == pytest.approx([GAIN * 0.1 / (1 + steps / 4) for steps in behind])


@pytest.mark.parametrize(("total_steps", "steps"), [(3, 2), (3.5, 4), (6.5, 4), (6.6, 6)])
def test_a_run_ends_with_the_epoch_in_which_its_schedule_does(rated, total_steps, steps):
    """2 steps are worth 3.28, 4 are worth 6.56."""
    rates, state = rated(total_steps=total_steps)

    assert len(rates) == steps
    assert state["adascale"]["progress"] == pytest.approx(steps * GAIN)


def test_a_step_without_a_measured_gradient_has_the_rate_so_far(rated):
    rates, state = rated(total_steps=100, epochs=1, is_measured=False)

    assert rates == pytest.approx([0.1, 0.1])
    assert state["adascale"]["progress"] == 0


@pytest.mark.parametrize(
    ("total_steps", "left"),
    [(100, [0.1 * GAIN / (1 + 3 / 4), 0.1 * GAIN / (1 + 4 / 4)]), (3, [])],
    ids=["goes on", "was over"],
)
def test_a_resumed_run_is_as_far_as_it_was(rated, tmp_path, total_steps, left):
    saved = tmp_path / "one.ckpt"
    rated(total_steps=total_steps, epochs=1, save=saved)
    rates, state = rated(total_steps=total_steps, epochs=2, resume=saved)

    assert rates == pytest.approx(left)
    assert state["adascale"]["progress"] == pytest.approx((2 + len(left)) * GAIN)
