"""Rates and batches that follow the gradient's noise, where the noise is known.

With equal curvatures the noisy quadratic's gradient at the start is (1, ..., 1), and each weight's
gradient has the variance `noise_scale` per example: the noise scale is that number as long as the
weights stay where they are, which tiny rates see to.
"""

import pandas as pd
import pytest

NOISE = 1024
STILL = (
    "+experiment=noisy_quadratic",
    "model.decay=0",
    f"model.noise_scale={NOISE}",
    "base_lr=1e-7",
    "noise_span=64",
    "data.num_train_examples=8192",
)
ADASCALE = (
    "lr_rule=adascale",
    "model.noise_scale=3072",
    "batch=1024",
    "base_batch=64",
    "epochs=1",
)
GROWING = (
    "schedule=growing_batch",
    "schedule.milestones=[1,2]",
    "schedule.factor=4",
    "schedule.max_batch=1024",
    "batch=256",
    "epochs=3",
)


BATCH_WARMUP = (
    "schedule=batch_warmup", "schedule.positions=[1,2]", "schedule.critical_batch=[512,1024]",
    "batch=256", "epochs=4",
)  # fmt: skip
ADAPTIVE = (
    "schedule=adaptive_batch", "schedule.smoothness=1e6", "schedule.largest_smoothness=1e6",
    "schedule.strong_convexity=1", "schedule.squared_distance=4.8e-5", "schedule.max_batch=8192",
    "batch=256", "epochs=3",
)  # fmt: skip
BY_RATE = (
    "schedule=batch_by_rate", "schedule.mean_batch=512", "schedule.max_batch=1024", "batch=128",
    "warmup=0.5", "epochs=4",
)  # fmt: skip
SEESAW = ("schedule=seesaw", "schedule.rate_exponent=-0.5", "batch=256", "epochs=4")


def column(record, name):
    return [row[name] for row in record["curve"]]


def test_the_measured_noise_scale_is_that_of_the_quadratic(run_words):
    """16 steps of a gradient (1, ..., 1) of 64 weights, each known to +-1: to 8 %, 3 times that."""
    words = (*STILL, "batch=1024", "epochs=1", "data.num_train_examples=16384")

    record = run_words(*words)

    assert column(record, "noise_scale") == pytest.approx([NOISE], rel=0.25)


def test_adascale_trains_as_long_and_at_such_rates_as_its_gain_says(run_words):
    """A gain of (48 + 1) / (3 + 1) = 12.25: 128 base steps take 10.4 steps, two epochs of 8."""
    record = run_words(*STILL, *ADASCALE)

    assert column(record, "lr") == pytest.approx([12.25e-7] * 2, rel=0.1)
    assert column(record, "step") == [8, 16]
    assert record["reason"] == "trained 2 epochs"


def test_a_planned_growth_multiplies_the_batch_and_then_the_rate_decays(run_words):
    """8,192 examples: 32 steps of 256, then 8 of 1,024 at the same rate, then at a quarter."""
    record = run_words(*STILL, *GROWING)

    assert column(record, "realised_batch") == [256, 1024, 1024]
    assert column(record, "step") == [32, 40, 48]
    assert column(record, "examples_seen") == [8192, 16_384, 24_576]
    assert column(record, "lr") == pytest.approx([1e-7, 1e-7, 2.5e-8])
    assert (record["realised_batch_min"], record["realised_batch_max"]) == (256, 1024)


def test_seesaw_grows_the_batch_and_lowers_the_rate_at_once(run_words):
    """At epochs 2 and 3 of 4; 32 steps of 256, then 16 of 512, 8 of 1,024."""
    record = run_words(*STILL, *SEESAW)

    assert column(record, "realised_batch") == [256, 256, 512, 1024]
    assert column(record, "step") == [32, 64, 80, 88]
    assert column(record, "lr") == pytest.approx([1e-7, 1e-7, 1e-7 / 2**0.5, 5e-8])


def test_a_measured_growth_comes_when_the_noise_is_above_the_batch(run_words):
    """1,024 is above 256 and below 4,096, so the batch grows once, without any milestone."""
    words = ("schedule.growth=measured", "schedule.milestones=[]", "schedule.factor=16")

    record = run_words(*STILL, *GROWING, *words, "schedule.max_batch=8192")

    assert column(record, "realised_batch") == [256, 4096, 4096]
    assert column(record, "lr") == pytest.approx([1e-7] * 3)


def test_the_batch_and_the_rate_are_those_of_the_gradients_mean_square(run_words):
    """64 + 64 * 1024 = h, so c = 2 h / 4.8e-5 = 2.73e9 and n c / (c + (n - 1) 1e6) = 2,048."""
    record = run_words(*STILL, *ADAPTIVE)

    assert column(record, "realised_batch") == [256, 2048, 2048]
    assert column(record, "lr") == pytest.approx([1e-7, 5e-7, 5e-7], rel=0.1)


def test_the_batch_falls_again_with_the_gradients(run_words):
    """Weights fall from 1, and the mean square of their gradients from 128 to its noise of 64."""
    words = ("base_lr=0.1", "model.noise_scale=1", "schedule.squared_distance=1", "batch=1024")
    smooth = ("schedule.smoothness=1", "schedule.largest_smoothness=1", "schedule.max_batch=8192")
    record = run_words(*STILL, *ADAPTIVE, *words, *smooth, "schedule.strong_convexity=0.01")

    first, second, third = column(record, "realised_batch")
    assert first == 1024
    assert second > third > 1024


def test_batches_that_do_not_divide_the_epoch_are_trained_whole_in_each_phase(run_words):
    """2,560 examples: 10 steps of 256; 2 of 1,024, which leave 512 out."""
    record = run_words(*STILL, *GROWING, "data.num_train_examples=2560")

    assert column(record, "step") == [10, 12, 14]
    assert column(record, "examples_seen") == [2560, 4608, 6656]


@pytest.mark.parametrize(
    "words",
    [
        (*ADASCALE, "epochs=2"),
        (*GROWING, "schedule.growth=measured"),
        SEESAW,
        BATCH_WARMUP,
        (*ADAPTIVE, "batch=64", "noise_span=32", "epochs=4"),
        BY_RATE,
        ("schedule=wsd", "schedule.cooldown=0.5", "batch=256", "epochs=3"),
        (*GROWING, "optimizer=vr_sgd", "optimizer.gradient_span=64"),
        (*GROWING, "data.num_train_examples=2560"),  # 40 micro-batches, then 32 in an epoch
    ],
    ids=[
        "adascale",
        "measured growth",
        "seesaw",
        "batch warmup",
        "adaptive batch",
        "batch by rate",
        "wsd",
        "planned growth, with parts looked at",
        "shorter epochs",
    ],
)
def test_what_was_decided_survives_a_resume(run_words, words):
    """Moving weights, so that the noise changes from step to step."""
    moving = (*STILL, "base_lr=0.01", *words)
    whole = run_words(*moving, name="whole")
    run_words(*moving, name="stopped", stop_after=2)

    resumed = run_words(*moving, name="stopped")

    assert len(whole["curve"]) > 2
    assert resumed["lr_series_hash"] == whole["lr_series_hash"]
    for name in ("realised_batch", "step", "train_loss", "val_loss", "noise_scale"):
        assert column(resumed, name) == column(whole, name)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [ADASCALE, (*GROWING, "schedule.growth=measured"), ADAPTIVE, SEESAW, BY_RATE]
)
def test_one_rank_and_two_decide_alike(sweep_here, tmp_path, words):
    curves = []
    for devices in (1, 2):
        results = tmp_path / f"on-{devices}"
        layout = (f"devices={devices}", "precision=64-true")
        assert sweep_here(results, *STILL, "base_lr=0.01", *words, *layout) == 0
        curves.append(pd.read_parquet(results / "curves").sort_values("epoch"))

    for name in ("lr", "val_loss", "noise_scale", "realised_batch"):
        assert list(curves[0][name]) == pytest.approx(list(curves[1][name]), rel=1e-9)
