"""Progress inside an epoch: reported rarely, at the rate of this attempt's training alone."""

from types import SimpleNamespace

import pytest
from pytorch_lightning.callbacks import Callback

from lightning_modules.callbacks import curve as curve_module
from lightning_modules.callbacks.batch_contract import BatchContract
from lightning_modules.callbacks.curve import StepReport
from lightning_modules.callbacks.follow_plan import FollowPlan
from lightning_modules.callbacks.mid_epoch_resume import MidEpochResume
from lightning_modules.layers.batch_position import StepPosition


class Takes(Callback):
    """Lets time pass: in each micro-batch, and between two epochs."""

    def __init__(self, now, step_s, between_s):
        self.now, self.step_s, self.between_s = now, step_s, between_s

    def on_train_batch_start(self, *_):
        self.now[0] += self.step_s / 2  # two micro-batches a step

    def on_train_epoch_end(self, *_):
        self.now[0] += self.between_s


@pytest.fixture
def now(monkeypatch):
    """The clock that is read, which only a test moves."""
    seconds = [1000.0]
    monkeypatch.setattr(curve_module, "time", SimpleNamespace(perf_counter=lambda: seconds[0]))
    return seconds


@pytest.fixture
def reported(fit, line, plan, batches, now):
    """What is reported of 2 epochs of steps of 4 examples, 2 steps each unless there are more."""

    def run(*, examples=8, step_s=1.0, between_s=0.0, report=lambda _: None, **settings):
        of_run, found = plan(examples=examples, **settings.pop("words", {})), []
        contract = BatchContract(of_run)

        def note(progress):
            found.append(progress)
            report(progress)

        steps = StepReport(of_run, contract, epochs=2, report=note)
        resume = MidEpochResume(of_run, contract)
        callbacks = [
            contract,
            FollowPlan(of_run, StepPosition()),
            Takes(now, step_s, between_s),
            steps,
            resume,
        ]
        fit(line(), callbacks, batches(examples // 2), **{"epochs": 2, **settings})
        return found

    return run


def where(progress):
    return [(each.epoch, each.step, each.steps) for each in progress]


def test_the_first_step_is_reported_and_then_not_more_often_than_every_two_seconds(reported):
    """Ten steps an epoch; the last one of an epoch is said, so that validation is not a step."""
    found = reported(examples=40, step_s=0.9)

    assert where(found) == [(1, step, 10) for step in (1, 4, 7, 10)] + [
        (2, step, 10) for step in (3, 6, 9, 10)
    ]


def test_epochs_that_are_over_in_no_time_are_not_all_reported(reported):
    found = reported(step_s=0.01)

    assert where(found) == [(1, 1, 2), (1, 2, 2)]


def test_the_rate_and_the_time_left_leave_out_the_first_step_and_know_of_validation(reported):
    """The first step takes as long as the others here; 40 s lie between the epochs."""
    found = reported(examples=40, step_s=4.0, between_s=40.0)

    assert found[0].examples_per_s is found[0].left_s is None
    assert [each.first_step_s for each in found[:2]] == [4.0, None]
    assert {each.examples_per_s for each in found[1:]} == {1.0}
    assert found[1].left_s == 80 - 8  # of two epochs of 40 examples; no validation was seen
    (fifth,) = [each for each in found if (each.epoch, each.step) == (2, 5)]
    assert fifth.left_s == 20 + 40


def test_steps_of_a_batch_that_has_grown_are_counted_in_full(reported, growing):
    found = reported(examples=16, step_s=4.0, words={"schedule": growing(1)})

    assert where(found)[-1] == (2, 2, 2)
    assert {each.examples_per_s for each in found[1:]} == {1.0}  # a micro-batch of 2 takes 2 s
    assert found[-1].left_s == 0


def test_a_resumed_run_counts_from_where_it_resumes(reported, tmp_path):
    reported(examples=40, epochs=1, save=tmp_path / "one.ckpt")

    found = reported(examples=40, step_s=2.0, resume=tmp_path / "one.ckpt")

    assert where(found)[:2] == [(2, 1, 10), (2, 2, 10)]
    assert {each.resumed_at for each in found} == {1}
    assert found[1].examples_per_s == 2.0
    assert found[1].left_s == 16.0


def test_a_slow_file_system_is_written_to_less_often(reported, now):
    """Each report takes 1 s: at most a fiftieth of the time is spent on them."""

    def slow(_):
        now[0] += 1

    found = reported(examples=240, step_s=1.0, epochs=1, report=slow)

    assert where(found) == [(1, 1, 60), (1, 50, 60), (1, 60, 60)]
