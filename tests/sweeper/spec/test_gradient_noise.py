"""The gradient's noise and AdaScale's gain against the arithmetic of their papers."""

import math
import random

import numpy as np
import pytest

from sweeper.spec.noise import (
    AdaScale,
    Noise,
    NoiseAverage,
    describe_noise,
    gain,
    noise_of_batch,
    noise_scale,
    smoothing,
)
from sweeper.spec.run_spec import run_spec


def test_two_batches_give_the_noise_scale_of_mccandlishs_appendix():
    """True |G|^2 = 4 and tr(Sigma) = 100: |G_32|^2 = 7.125 and |G_256|^2 = 4.390625 on average."""
    noise = noise_of_batch(7.125, 4.390625, span=32, parts=8)

    assert (noise.signal, noise.variance) == pytest.approx((4, 100))
    assert noise_scale(noise) == pytest.approx(25)


def test_the_estimates_are_unbiased():
    """Mean over 4,000 batches of 4 parts in 3 dimensions, |G|^2 = 1 and tr(Sigma) = 3 x 8 = 24."""
    draw = random.Random(0)
    average = NoiseAverage(smoothing=1.0)
    for _ in range(4000):
        parts = [[(i == 0) + draw.gauss(0, 1) for i in range(3)] for _ in range(4)]  # 8 examples
        mean = [sum(values) / 4 for values in zip(*parts, strict=True)]
        squares = [sum(x * x for x in part) for part in parts]
        average.add(noise_of_batch(sum(squares) / 4, sum(x * x for x in mean), span=8, parts=4))

    assert average.mean().signal == pytest.approx(1, abs=0.06)
    assert average.mean().variance == pytest.approx(24, rel=0.02)


def test_columns_of_two_orthogonal_gradients():
    """(1, 0) and (0, 1): a diversity of 1 and a variance over s of 1 (Yin et al. 2018)."""
    noise = noise_of_batch(1.0, 0.5, span=1, parts=2)

    columns = describe_noise(noise, span=1, batch=2)

    assert (columns["gradient_signal"], columns["gradient_variance"]) == (0, 1)
    assert columns["gradient_cosine"] == 0
    assert columns["gradient_diversity"] == pytest.approx(1)
    assert columns["norm_test"] == pytest.approx(1)


def test_columns_are_those_of_the_pairs_and_sums_of_gradients():
    draw = np.random.default_rng(3).normal(0.5, 1, (6, 20))  # six spans of 8 examples
    squares, total = (draw**2).sum(), draw.sum(axis=0)
    noise = noise_of_batch(squares / 6, ((total / 6) ** 2).sum(), span=8, parts=6)

    columns = describe_noise(noise, span=8, batch=48)

    products = draw @ draw.T
    pairs = (products.sum() - np.trace(products)) / 30
    assert columns["gradient_cosine"] == pytest.approx(pairs / (squares / 6))
    assert columns["gradient_diversity"] == pytest.approx(squares / (total**2).sum())
    of_mean = draw.var(axis=0, ddof=1).sum() / 6
    assert columns["norm_test"] == pytest.approx(of_mean / ((total / 6) ** 2).sum())


def test_gradients_of_zero_have_no_ratio():
    columns = describe_noise(Noise(signal=0.0, variance=0.0), span=8, batch=48)

    assert math.isnan(columns["gradient_cosine"])
    assert math.isnan(columns["norm_test"])


def test_no_signal_is_an_infinite_noise_scale():
    assert noise_scale(Noise(signal=-0.1, variance=5.0)) == math.inf


@pytest.mark.parametrize(
    ("signal", "variance", "expected"),
    [
        (1.0, 0.0, 1.0),  # no noise: a larger batch gains nothing
        (0.0, 1.0, 30.0),  # nothing but noise: it gains its full ratio
        (-1.0, 1.0, 30.0),
        (1.0, -1.0, 1.0),
        (1.0, 10_000.0, 17.4027),  # McCandlish's ratio at a noise scale of 10,000 examples
    ],
)
def test_the_gain_goes_from_one_to_the_batch_ratio(signal, variance, expected):
    noise = Noise(signal=signal, variance=variance)

    assert gain(noise, base_batch=256, global_batch=7680) == pytest.approx(expected, rel=1e-5)


def test_a_moving_average_is_corrected_for_its_start():
    """Constant input is its own average from the first step on; two steps weigh 0.09 and 0.1."""
    average = NoiseAverage(smoothing=0.9)
    average.add(Noise(signal=2.0, variance=5.0))
    assert average.mean() == Noise(signal=pytest.approx(2.0), variance=pytest.approx(5.0))

    average.add(Noise(signal=4.0, variance=5.0))

    assert average.mean().signal == pytest.approx((0.09 * 2 + 0.1 * 4) / 0.19)


def test_the_papers_averages_forget_faster_at_larger_ratios():
    assert [smoothing(ratio) for ratio in (1, 100, 1000, 5000)] == [0.999, 0.9, 0.0, 0.0]


@pytest.fixture
def adascale(grid):
    """AdaScale at 16 times the base batch: 240 base steps an epoch, 15 of the run's."""

    def make(*words):
        words = ["lr_rule=adascale", "batch=4096", "base_lr=0.1", "bn_span=128", *words]
        (config,) = grid(*words)
        spec = run_spec(config)
        average = NoiseAverage(smoothing=0.0)
        return spec, AdaScale(
            schedule=spec.schedule, base_batch=256, global_batch=4096, average=average
        )

    return make


def test_adascale_multiplies_the_base_rate_by_the_gain_and_progresses_by_it(adascale):
    """Noise scales 0 and infinity: gains of 1 and 16; then 256 x 15/7: a gain of 2.79."""
    _, state = adascale("schedule=constant", "warmup=0")

    pure_signal = state.step(Noise(signal=1.0, variance=0.0))
    pure_noise = state.step(Noise(signal=0.0, variance=1.0))
    between = state.step(Noise(signal=7.0, variance=256.0 * 15))

    assert (pure_signal, pure_noise) == pytest.approx((0.1, 1.6))
    assert between == pytest.approx(0.1 * (15 + 7) / (15 / 16 + 7))
    assert state.progress == pytest.approx(1 + 16 + 22 / (15 / 16 + 7))


def test_adascales_schedule_is_that_of_the_base_batch(adascale):
    """61,440 examples are 240 steps of 256: epoch 24 of the schedule is base step 5,760."""
    spec, state = adascale("warmup=0")
    state.progress = 5759.5
    before = state.lr

    state.progress = 5760.0

    assert before == pytest.approx(0.1)
    assert state.lr == pytest.approx(0.01)
    assert (spec.steps_per_epoch, spec.epochs, spec.most_epochs) == (15, 30, 480)


def test_adascale_goes_on_from_its_state(adascale):
    _, state = adascale()
    state.step(Noise(signal=1.0, variance=300.0))
    _, resumed = adascale()

    resumed.load_state(state.state())

    later = Noise(signal=0.5, variance=700.0)
    assert resumed.step(later) == state.step(later)
    assert resumed.progress == state.progress


@pytest.mark.parametrize(
    ("words", "span"),
    [
        (("lr_rule=adascale", "batch=4096", "noise_span=64", "bn_span=64"), 64),
        (("optimizer=vr_sgd", "batch=7680"), 384),
    ],
)
def test_the_span_of_compared_gradients_fixes_the_micro_batch_on_every_layout(grid, words, span):
    specs = [run_spec(config) for config in grid(*words, "devices=1,2,4")]

    assert {spec.split.micro_batch for spec in specs} == {span}
    assert len({spec.run_id for spec in specs}) == 1
