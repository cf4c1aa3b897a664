"""The drawing of planned learning rates."""

import pytest

from sweeper.console.planned_runs import describe_course, draw_schedules, schedule_series
from sweeper.spec.run_spec import run_spec


@pytest.fixture
def specs(grid):
    def plan(*words):
        return [run_spec(config) for config in grid(*words)]

    return plan


def test_seeds_share_a_line_and_batches_have_their_own(specs):
    series = schedule_series(specs("batch=3840,30720", "seed=0,1,2"))

    assert sorted(series.values()) == [
        "batch 3,840, warmup 5, linear, periodic_decay",
        "batch 30,720, warmup 5, linear, periodic_decay",
    ]


def test_arms_with_the_same_rates_are_one_line(specs):
    """At the base batch every rule gives the base rate."""
    series = schedule_series(
        specs("batch=3840", "base_batch=3840", "lr_rule=linear,none", "schedule=constant")
    )

    assert list(series.values()) == [
        "batch 3,840, warmup 5, linear, constant; batch 3,840, warmup 5, none, constant",
    ]


def test_a_line_is_the_rates_at_the_steps(specs):
    """30,720 of 61,440 examples are two steps an epoch, from 0.1 to 12 in five epochs."""
    words = ("batch=30720", "base_lr=0.1", "schedule=constant", "epochs=6", "warmup=5")

    (series,) = schedule_series(specs(*words))

    expected = [(step / 2, 0.1 + 11.9 * min(1, step / 10)) for step in range(12)]
    assert [value for point in series for value in point] == pytest.approx(
        [value for point in expected for value in point]
    )


def test_a_growing_batch_is_drawn_where_its_steps_stand(specs):
    """Two steps in epoch 0, one in each of the next two; the rate falls when it may not grow."""
    words = ("batch=30720", "base_lr=0.1", "lr_rule=none", "warmup=0", "epochs=3")
    words += ("schedule=growing_batch", "schedule.milestones=[1,2]", "schedule.factor=2")

    (series,) = schedule_series(specs(*words, "schedule.max_batch=61440"))

    assert series == ((0.0, 0.1), (0.5, 0.1), (1.0, 0.1), (2.0, 0.05))


def test_a_ramp_within_an_epoch_is_drawn_and_described_by_its_steps(specs):
    """A quarter of 61,440 examples are 2 steps of 7,680; then one of 15,360, and one of 30,720."""
    words = ("batch=7680", "base_lr=0.1", "lr_rule=none", "warmup=0", "epochs=1")
    words += ("schedule=growing_batch", "schedule.milestones=[25,50]", "warmup_unit=percent")
    words += ("schedule.factor=2", "schedule.max_batch=30720", "+schedule.rate_exponent=1")

    (spec,) = specs(*words)

    rates = ((0.0, 0.1), (0.125, 0.1), (0.25, 0.2), (0.5, 0.4))
    name = "batch 7,680 to 30,720, warmup 0, none, growing_batch"
    assert schedule_series([spec]) == {rates: name}
    said = "batch 7,680, then 15,360 from step 2 on, 30,720 from step 3 on."
    assert describe_course(spec) == said


def test_only_changes_of_the_batch_are_described(specs):
    """A batch of 512 finds no place in an epoch of 640 examples before 256 is asked for again.

    A rate that falls linearly asks for the mean batch throughout.
    """
    words = ("data.num_train_examples=640", "batch=64", "bn_span=16", "warmup=0", "epochs=5")
    words += ("schedule=batch_by_rate", "schedule.max_batch=512")

    (back,) = specs(*words, "schedule.mean_batch=192", "schedule.rate=wsd")
    (same,) = specs(*words, "schedule.mean_batch=128", "schedule.rate=linear_decay")

    assert describe_course(back) == "batch 128, then 256 from epoch 2 on (2 steps each)."
    assert describe_course(same) == "batch 128 in every step."


def test_the_drawing_is_a_file(specs, tmp_path):
    draw_schedules(specs("batch=3840,30720"), tmp_path / "lr.png")

    assert (tmp_path / "lr.png").read_bytes().startswith(b"\x89PNG")
