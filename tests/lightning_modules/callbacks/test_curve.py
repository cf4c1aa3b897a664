"""The curve has a row for each epoch; its time and its rates go on after a resume."""

from types import SimpleNamespace

import pytest

from lightning_modules.callbacks import curve as curve_module
from lightning_modules.callbacks.curve import Clock, Curve
from sweeper.spec.noise import NOISE_COLUMNS
from sweeper.store.schema import ANGLE_COLUMNS


@pytest.fixture
def pass_time(monkeypatch):
    """Let seconds pass on the clock that is read; it starts at 1,000."""
    now = [1000.0]
    monkeypatch.setattr(curve_module, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def wait(seconds):
        now[0] += seconds

    return wait


def train_epoch(clock, pass_time, *, training, validation):
    clock.on_train_epoch_start(None, None)
    pass_time(training)
    clock.on_steps_end(None, None)
    pass_time(validation)
    clock.end_lap()


def test_validation_counts_as_elapsed_but_not_as_training(pass_time):
    clock = Clock()
    pass_time(100)  # data are read, the model is built
    train_epoch(clock, pass_time, training=10, validation=2)
    train_epoch(clock, pass_time, training=20, validation=3)

    assert (clock.train_s, clock.elapsed_s) == (30, 35)


def test_time_between_attempts_is_not_counted(pass_time):
    """5 seconds of an epoch before a stop and 7 after it, when Lightning does not start it anew."""
    before = Clock()
    train_epoch(before, pass_time, training=10, validation=2)
    before.on_train_epoch_start(None, None)
    pass_time(5)
    state = before.state_dict()
    pass_time(3600)

    after = Clock()
    after.load_state_dict(state)
    after.on_train_start(None, None)
    pass_time(7)
    after.on_steps_end(None, None)
    pass_time(1)
    after.end_lap()

    assert (after.train_s, after.elapsed_s) == (22, 25)


def test_an_epochs_row_has_the_columns_of_what_was_measured(
    fit, line, plan, growing, batches, pass_time
):
    """Micro-batches of 2, 4 an epoch: the batch of 4 doubles for the second."""
    del pass_time  # stands still
    measured = [SimpleNamespace(columns={"val_loss": 0.5}), SimpleNamespace(columns={"depth": 3.0})]
    curve = Curve(plan(schedule=growing(1)), Clock(), measured)

    fit(line(), [curve], batches(4), epochs=1)
    fit(line(), [curve], batches(4), epochs=1, accumulate=4)

    assert curve.rows[0] == {
        "epoch": 1,
        "step": 2,
        "realised_batch": 4,
        "examples_seen": 8,
        "lr": 0.1,
        **dict.fromkeys(("beta1", "beta2", "eps", "ema_decay")),
        "weight_decay": 0.0,
        **dict.fromkeys((*NOISE_COLUMNS, *ANGLE_COLUMNS)),
        "elapsed_s": 0.0,
        "val_loss": 0.5,
        "depth": 3.0,
    }


def test_a_resumed_curve_is_that_of_the_whole_run(fit, line, plan, batches, tmp_path, pass_time):
    del pass_time
    whole, half, resumed = (Curve(plan(), Clock(), []) for _ in range(3))

    fit(line(), [whole], batches(4), epochs=2)
    fit(line(), [half], batches(4), epochs=1, save=tmp_path / "one.ckpt")
    fit(line(), [resumed], batches(4), epochs=2, resume=tmp_path / "one.ckpt")

    assert resumed.state_dict() == whole.state_dict()
    assert half.lr_series_hash != whole.lr_series_hash


def test_rows_are_reported_once_each_to_every_listener(plan):
    first, second = [], []
    curve = Curve(plan(), Clock(), [], [first.append, second.append])

    curve.report()
    curve.rows += ["one", "two"]
    curve.report()
    curve.report()
    curve.rows.append("three")
    curve.report()

    assert first == second == [["one", "two"], ["three"]]
