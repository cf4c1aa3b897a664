"""Warmups and decays against the numbers of their papers."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from sweeper.spec.run_spec import run_spec
from sweeper.spec.schedule import LRSchedule, warmup_climb
from sweeper.spec.schedules import Schedule, Training

IMAGENET = 1_281_167
read = TypeAdapter(Schedule).validate_python


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


def test_a_warmup_from_zero_trains_its_first_step_at_zero():
    """MLPerf: lr * step / warmup_steps."""
    mlperf = schedule(start="zero", peak_lr=10, warmup_epochs=5)

    assert [mlperf.lr(step) for step in (0, 1, 250, 500)] == pytest.approx([0, 0.02, 5, 10])


def test_a_constant_warmup_jumps_at_its_end():
    goyal = schedule(start="constant", warmup_epochs=5)

    assert [goyal.lr(step) for step in (0, 499, 500)] == [0.1, 0.1, 3.2]


def test_without_a_warmup_the_first_step_is_at_the_peak():
    assert [schedule(start=s).lr(0) for s in ("base", "zero", "constant")] == [3.2] * 3


@pytest.mark.parametrize(
    ("start", "workers", "advice"),
    [("horovod", None, "Write warmup_workers=240."), ("zero", 8, "Remove warmup_workers.")],
)
def test_workers_go_with_horovods_warmup_alone(start, workers, advice):
    message = (
        "warmup_workers must be given with warmup_start=horovod and only with it; got "
        f"warmup_start={start}, warmup_workers={workers}. {advice}"
    )

    with pytest.raises(ValueError) as refused:  # noqa: PT011  the whole text is compared
        warmup_climb(start, base_lr=0.1, peak_lr=1.0, workers=workers)

    assert str(refused.value) == message


def test_periodic_decay_takes_effect_at_the_first_step_of_the_epoch():
    """Goyal et al.'s 30/60/80: the rate of step 30 * steps_per_epoch is a tenth."""
    milestones = {"name": "periodic_decay", "milestones": [30, 60, 80], "factor": 0.1}
    goyal = schedule(decay=milestones)

    rates = [goyal.lr(step) / 3.2 for step in (2999, 3000, 5999, 6000, 7999, 8000, 8999)]

    assert rates == pytest.approx([1, 0.1, 0.1, 0.01, 0.01, 0.001, 0.001])


def test_milestones_count_from_the_start_of_training_warmup_included():
    decay = {"name": "periodic_decay", "milestones": [30], "factor": 0.1}

    with_warmup = schedule(warmup_epochs=20, decay=decay)

    assert [with_warmup.lr(step) for step in (2999, 3000)] == pytest.approx([3.2, 0.32])


def test_the_milestone_of_90_in_90_epochs_never_fires():
    """McCord & Dash 2021: epochs 0 to 89, so two decays in truth."""
    decay = {"name": "periodic_decay", "milestones": [30, 60, 90], "factor": 0.1}

    assert schedule(decay=decay).lr(8999) == pytest.approx(0.032)


POLYNOMIAL = {"name": "polynomial", "power": 2, "end_lr": 0.0, "clock": "start", "extra_steps": 0}


def test_a_parabola_is_at_a_quarter_half_way():
    assert schedule(decay=POLYNOMIAL).lr(4500) == pytest.approx(3.2 / 4)


def test_a_decay_clock_that_runs_through_the_warmup_takes_its_part_of_the_peak():
    """5 of 90 epochs, power 2: (85/90)**2 = 0.892 of the peak at the end of the warmup."""
    running = schedule(start="zero", warmup_epochs=5, decay=POLYNOMIAL)

    assert running.lr(500) / 3.2 == pytest.approx(0.892, abs=5e-4)


def test_a_decay_clock_that_starts_after_the_warmup_keeps_the_peak():
    decay = {**POLYNOMIAL, "clock": "warmup"}
    waiting = schedule(start="zero", warmup_epochs=5, decay=decay)

    assert waiting.lr(499) == pytest.approx(3.2 * 499 / 500)
    assert waiting.lr(500) == pytest.approx(3.2)
    assert waiting.lr(500 + 4250) == pytest.approx(3.2 / 4)


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


@given(st.permutations(range(0, 9000, 500)))
def test_a_schedule_has_no_memory(steps):
    """Any step can be asked for in any order, as after a resume."""
    one = schedule(warmup_epochs=5, decay=POLYNOMIAL)
    in_order = dict(zip(sorted(steps), map(one.lr, sorted(steps)), strict=True))

    assert {step: one.lr(step) for step in steps} == in_order


def test_a_schedule_of_the_users_own_comes_from_one_file(tmp_path, monkeypatch):
    (tmp_path / "my_decay.py").write_text(
        "def halving(training, *, every):\n    return lambda epoch: 0.5 ** (epoch // every)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    decay = {"name": "halving", "_target_": "my_decay.halving", "every": 10}

    assert schedule(decay=decay).lr(2000) == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("decay", "message"),
    [
        (
            {"name": "exponential"},
            "schedule must be one of constant, cosine, growing_batch, periodic_decay, polynomial; "
            "got schedule='exponential'. Name a function of your own with schedule._target_.",
        ),
        (
            {"name": "periodic_decay", "milestones": [60, 30], "factor": 0.1},
            "schedule.milestones must be positive and ascending; got "
            "schedule.milestones=[60, 30]. Sort them and remove repeats.",
        ),
        (
            {**POLYNOMIAL, "clock": "epoch"},
            "schedule.clock must be one of start, warmup; got schedule.clock='epoch'. "
            "The decay starts with training, or at the end of the warmup.",
        ),
        (
            {**POLYNOMIAL, "end_lr": 5.0},
            "schedule.end_lr must be from 0 to the peak rate; got schedule.end_lr=5.0, "
            "peak rate 0.375. Lower schedule.end_lr.",
        ),
    ],
    ids=["unknown", "milestones", "clock", "end_lr"],
)
def test_a_wrong_schedule_is_refused_in_the_users_words(config, decay, message):
    with pytest.raises(ValueError) as refused:  # noqa: PT011  the whole text is compared
        run_spec(config(schedule=decay))

    assert str(refused.value) == message


def test_legws_warmup_is_391_steps_at_every_batch():
    """Epochs in proportion to the batch are a constant number of steps: 10 * N / 32,768."""
    steps = {
        round(
            schedule(
                warmup_epochs=10 * batch / 32768, steps_per_epoch=IMAGENET / batch
            ).warmup_steps
        )
        for batch in (512, 3840, 7680, 30720, 32768)
    }

    assert steps == {391}
