"""Warmups and decays against the numbers of their papers."""

import itertools
import math
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf
from pydantic import TypeAdapter

from sweeper import CONFIG_FOLDER
from sweeper.spec.run_spec import run_spec
from sweeper.spec.schedule import LRSchedule, warmup_climb
from sweeper.spec.schedules import GROWING, Schedule, Training

read = TypeAdapter(Schedule).validate_python
SCHEDULES = CONFIG_FOLDER / "schedule"


def schedule(
    *,
    start="base",
    workers=None,
    base_lr=0.1,
    peak_lr=3.2,
    warmup_epochs=0.0,
    epochs=90,
    steps_per_epoch=100.0,
    decay=None,
):
    start_lr, shape = warmup_climb(start, base_lr=base_lr, peak_lr=peak_lr, workers=workers)
    training = Training(
        epochs=epochs,
        warmup_epochs=warmup_epochs,
        steps_per_epoch=steps_per_epoch,
        peak_lr=peak_lr,
    )
    return LRSchedule(
        start_lr=start_lr,
        shape=shape,
        peak_lr=peak_lr,
        warmup_epochs=warmup_epochs,
        warmup_steps=warmup_epochs * steps_per_epoch,
        steps_per_epoch=steps_per_epoch,
        decay=read(decay or {"name": "constant"}).decay(training),
    )


def test_goyals_warmup_adds_the_same_amount_each_of_782_steps():
    """Batch 8,192: from 0.1 to 3.2 in 782 steps, 0.0039642 a step."""
    goyal = schedule(warmup_epochs=5, steps_per_epoch=782 / 5)

    rates = [goyal.lr(step) for step in range(784)]

    increments = [after - before for before, after in itertools.pairwise(rates[:783])]
    assert rates[0] == 0.1
    assert increments == pytest.approx([0.0039642] * 782, abs=1e-7)
    assert rates[782:] == pytest.approx([3.2, 3.2])


@pytest.mark.parametrize(
    ("peak", "steps_per_epoch", "first"), [(3.0, 167, 0.01607784), (12.0, 42, 0.10690476)]
)
def test_horovods_warmup_starts_and_ends_as_its_example_does(peak, steps_per_epoch, first):
    """240 workers, 5 epochs; the last step of the warmup is at the peak."""
    horovod = schedule(
        start="horovod",
        workers=240,
        peak_lr=peak,
        warmup_epochs=5,
        steps_per_epoch=steps_per_epoch,
    )

    last = 5 * steps_per_epoch - 1

    assert horovod.lr(0) == pytest.approx(first, abs=1e-8)
    assert horovod.lr(last - 1) < peak
    assert horovod.lr(last) == pytest.approx(peak)
    assert horovod.lr(last + 1) == pytest.approx(peak)


@pytest.mark.parametrize(
    ("settings", "rates"),
    [
        # MLPerf: lr * step / warmup_steps, so the first step trains at zero.
        ({"start": "zero", "peak_lr": 10, "warmup_epochs": 5}, {0: 0, 1: 0.02, 250: 5, 500: 10}),
        ({"start": "constant", "warmup_epochs": 5}, {0: 0.1, 499: 0.1, 500: 3.2}),
        *(({"start": start}, {0: 3.2}) for start in ("base", "zero", "constant")),
    ],
)
def test_a_warmup_starts_and_ends_as_its_kind_says(settings, rates):
    found = schedule(**settings)

    assert {step: found.lr(step) for step in rates} == pytest.approx(rates)


@pytest.mark.parametrize(
    ("milestones", "warmup", "rates"),
    [
        # Goyal et al.: the rate of step 30 * steps_per_epoch is a tenth.
        ([30, 60, 80], 0, {2999: 3.2, 3000: 0.32, 6000: 0.032, 7999: 0.032, 8000: 3.2e-3}),
        ([30], 20, {2999: 3.2, 3000: 0.32}),  # counted from the start of training
        # McCord & Dash 2021: epochs 0 to 89, so the milestone of 90 never fires.
        ([30, 60, 90], 0, {8999: 0.032}),
    ],
)
def test_periodic_decay_takes_effect_at_the_first_step_of_the_epoch(milestones, warmup, rates):
    decay = {"name": "periodic_decay", "milestones": milestones, "factor": 0.1}
    found = schedule(warmup_epochs=warmup, decay=decay)

    assert {step: found.lr(step) for step in rates} == pytest.approx(rates)


POLYNOMIAL = {"name": "polynomial", "power": 2, "end_lr": 0.0, "clock": "start", "extra_steps": 0}


@pytest.mark.parametrize(
    ("clock", "warmup", "fractions"),
    [
        ("start", 0, {4500: 1 / 4}),
        ("start", 5, {500: (85 / 90) ** 2}),  # the clock runs through the warmup
        ("warmup", 5, {499: 499 / 500, 500: 1, 500 + 4250: 1 / 4}),
    ],
)
def test_a_parabola_is_at_a_quarter_half_way_of_its_clock(clock, warmup, fractions):
    decay = {**POLYNOMIAL, "clock": clock}
    found = schedule(start="zero", warmup_epochs=warmup, decay=decay)

    assert {step: found.lr(step) / 3.2 for step in fractions} == pytest.approx(fractions)


@pytest.mark.parametrize("step", [2, 50, 199])
def test_mlperfs_polynomial_is_its_codes(step):
    """decay_steps = train_steps - warmup_steps + 1 (mlcommons lars_util.py), here 200 - 2 + 1."""
    decay = {**POLYNOMIAL, "end_lr": 1e-4, "clock": "warmup", "extra_steps": 1}
    mlperf = schedule(
        start="zero", peak_lr=10, warmup_epochs=0.5, epochs=50, steps_per_epoch=4, decay=decay
    )

    expected = 1e-4 + (10 - 1e-4) * (1 - (step - 2) / 199) ** 2

    assert mlperf.lr(step) == pytest.approx(expected)


def test_a_cosine_is_in_the_middle_half_way():
    decay = {"name": "cosine", "end_lr": 0.2, "clock": "start"}
    cosine = schedule(decay=decay)

    assert [cosine.lr(step) for step in (0, 4500, 9000)] == pytest.approx([3.2, 1.7, 0.2])
    assert cosine.lr(1500) == pytest.approx(0.2 + 3.0 * (1 + math.cos(math.pi / 6)) / 2)


def test_wsd_cools_down_as_one_minus_the_root_of_its_progress():
    """Steps T0 = 800 to T = 999: 1 - sqrt((t - T0) / (T + 1 - T0))."""
    decay = {"name": "wsd", "cooldown": 0.2}
    wsd = schedule(peak_lr=2.0, epochs=10, warmup_epochs=1, decay=decay)

    found = [wsd.lr(step) / 2 for step in (0, 100, 799, 800, 850, 999)]

    assert found == pytest.approx([0.05, 1, 1, 1, 0.5, 1 - (199 / 200) ** 0.5])


@given(
    step=st.integers(0, 10_000),
    power=st.floats(0.5, 3),
    end_lr=st.floats(0, 3.2),
    clock=st.sampled_from(["start", "warmup"]),
)
def test_no_rate_is_below_the_end_or_above_the_peak(step, power, end_lr, clock):
    decay = {**POLYNOMIAL, "power": power, "end_lr": end_lr, "clock": clock}
    rate = schedule(warmup_epochs=5, base_lr=3.2, decay=decay).lr(step)

    assert end_lr - 1e-9 <= rate <= 3.2 + 1e-9


def test_a_schedule_of_the_users_own_comes_from_one_file(tmp_path, monkeypatch):
    (tmp_path / "my_decay.py").write_text(
        "def halving(training, *, every):\n    return lambda epoch: 0.5 ** (epoch // every)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    decay = {"name": "halving", "_target_": "my_decay.halving", "every": 10}

    assert schedule(decay=decay).lr(2000) == pytest.approx(0.8)


@pytest.mark.parametrize("code", ["lambda training: None", "lambda training: lambda epoch: -1.0"])
def test_a_schedule_of_the_users_own_that_gives_no_rates_is_refused(
    config, tmp_path, monkeypatch, code
):
    (tmp_path / "rateless.py").write_text(f"decay = {code}")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "rateless", raising=False)

    with pytest.raises(ValueError, match=r"schedule\._target_=rateless\.decay must give"):
        run_spec(config(schedule={"name": "mine", "_target_": "rateless.decay"}))


#: Of a training of 90 epochs with 5 of warmup, 10 steps an epoch and a peak rate of 1: the factors
#: half way from the warmup to the end, and at the end. None: a batch that grows in its place.
HALF_WAY = {
    "adaptive_batch": None,
    "batch_by_rate": None,
    "batch_warmup": None,
    "constant": (1, 1),
    "cosine": (0.5, 0),
    "goyal2017": (0.1, 1e-3),
    "goyal2017_small": (1e-3, 1e-3),
    "growing_batch": None,
    "linear_decay": (0.5, 0),
    "mccord2021": (0.1, 1e-3),
    "mccord2021_small": (1e-3, 1e-3),
    "mlperf_rn50": (1e-4 + (1 - 1e-4) * (426 / 851) ** 2, 1e-4 + (1 - 1e-4) / 851**2),
    "nado2021": (6e-6 + (1 - 6e-6) / 4, 6e-6),
    "periodic_decay": (1e-2, 1e-2),
    "polynomial": (1e-4 + (1 - 1e-4) / 4, 1e-4),
    "seesaw": None,
    "wsd": (1, 0),
    "you2017": (0.25, 0),
}


@pytest.mark.parametrize("name", sorted(path.stem for path in SCHEDULES.glob("*.yaml")))
def test_every_schedule_has_a_row_and_begins_at_the_peak(name):
    chosen = OmegaConf.load(SCHEDULES / f"{name}.yaml")
    for base in chosen.pop("defaults", []):
        chosen = OmegaConf.merge(OmegaConf.load(SCHEDULES / f"{base}.yaml"), chosen)
    if HALF_WAY[name] is None:
        assert chosen.name in GROWING
        return
    training = Training(epochs=90, warmup_epochs=5, steps_per_epoch=10, peak_lr=1)

    decay = read(OmegaConf.to_container(chosen)).decay(training)

    assert decay(0) == decay(2.9 if "small" in name else 5) == 1
    assert (decay(47.5), decay(90)) == pytest.approx(HALF_WAY[name])
