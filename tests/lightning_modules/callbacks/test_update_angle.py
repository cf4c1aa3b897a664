"""The angle of each update: against angles that are known, and the same however a run is split."""

import math
from types import SimpleNamespace

import pytest
import torch

from lightning_modules.callbacks.update_angle import UpdateAngle, mean_angle
from sweeper.store.schema import ANGLE_COLUMNS

RUN = (
    "batch=256", "bn_span=64", "epochs=2", "data.num_train_examples=2048", "update_angle=true",
    "warmup=0", "schedule=constant", "precision=64-true",
)  # fmt: skip


@pytest.mark.parametrize("radians", [1e-9, 1e-4, 0.3, math.pi / 2, 3.0])
@pytest.mark.parametrize("grows", [1.0, 0.5, 7.0])
def test_a_rotation_has_its_angle_whatever_becomes_of_the_length(radians, grows):
    turned = grows * torch.tensor([math.cos(radians), math.sin(radians)], dtype=torch.float64)
    still = torch.tensor([2.0, 1.0], dtype=torch.float64)
    before = [torch.tensor([1.0, 0.0], dtype=torch.float64), still, torch.zeros(3)]

    angle = mean_angle(before, [turned, 2 * still, torch.ones(3)])

    assert angle.item() == pytest.approx(radians / 2, rel=1e-6)  # with the one that did not turn


def test_the_largest_angle_keeps_its_digits_in_a_resume():
    module = torch.nn.Linear(2, 2)
    angle, trainer = UpdateAngle(), SimpleNamespace(accumulate_grad_batches=1, is_last_batch=False)
    angle.on_train_start(trainer, module)
    angle.load_state_dict({"steps": 1, "sum": 0.1, "largest": 0.1})

    angle.on_train_batch_end(trainer, module, None, None, 0)

    assert angle.state_dict()["largest"] == 0.1


def angles(record):
    return [[row[name] for name in ANGLE_COLUMNS] for row in record["curve"]]


def test_angles_do_not_depend_on_the_micro_batch_and_survive_a_stop(run_words):
    whole = run_words(*RUN, "micro_batch=256", name="whole")

    parts = run_words(*RUN, "micro_batch=64", name="parts")
    assert angles(parts) == [pytest.approx(row, rel=1e-9) for row in angles(whole)]
    assert all(0 < mean < largest < 1 for mean, largest in angles(whole))
    run_words(*RUN, "micro_batch=256", name="stopped", stop_after=1)
    assert angles(run_words(*RUN, "micro_batch=256", name="stopped")) == angles(whole)
    first = run_words(*RUN, "micro_batch=256", name="in an epoch", one_step=True)
    assert first["outcome"] == "preempted"
    assert angles(run_words(*RUN, "micro_batch=256", name="in an epoch")) == angles(whole)


def test_a_larger_rate_turns_further_in_proportion_and_measuring_changes_nothing(run_words):
    one_step = (*RUN, "batch=2048", "epochs=1", "optimizer.momentum=0", "optimizer.weight_decay=0")
    small, large = (
        run_words(*one_step, f"base_lr={lr}", "lr_rule=none", name=str(lr)) for lr in (1e-6, 2e-6)
    )
    unmeasured = run_words(
        *one_step, "base_lr=1e-6", "lr_rule=none", "update_angle=false", name="unmeasured"
    )

    (a,), (b,) = angles(small), angles(large)
    assert a[0] == a[1]  # of one step
    assert b[0] / a[0] == pytest.approx(2, rel=1e-4)
    assert angles(unmeasured) == [[None, None]]
    assert unmeasured["curve"][-1]["val_loss"] == small["curve"][-1]["val_loss"]
