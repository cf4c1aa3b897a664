"""Hardware is not a hyperparameter: layouts end with the same weights."""

import math
import os

import pytest

from sweeper.commands.compare_layouts import (
    Trained,
    compare,
    differences_between,
    main,
)
from sweeper.spec.batch import split_global_batch
from sweeper.spec.config import run_config

LAYOUTS = [
    {"devices": 1, "micro_batch": 3840},
    {"devices": 1, "micro_batch": 480},
    {"devices": 2, "micro_batch": 480},
    {"devices": 4, "micro_batch": 960},
    {"devices": 2, "micro_batch": 640},
]


SMALL_LAYOUTS = [{**layout, "micro_batch": layout["micro_batch"] // 4} for layout in LAYOUTS]

#: Of a batch of 480 with a span of 120, which 1, 2 or 4 ranks normalise together.
LAYOUTS_OF_SPANS = [
    {"devices": 1, "micro_batch": 480},
    {"devices": 1, "micro_batch": 120},
    {"devices": 2, "micro_batch": 60},
    {"devices": 4, "micro_batch": 60},
    {"devices": 4, "micro_batch": 30},
]


@pytest.fixture
def layouts_of(config):
    """Train steps of 3,840 on each layout, with BatchNorm over 80 or with another model."""

    def run(precision, *, steps, batch=3840, layouts=LAYOUTS, **changes):
        data = {**config()["data"], "num_train_examples": batch * steps}
        short = {"schedule": {"name": "constant"}, "warmup": 0, "epochs": 1, "bn_span": 80}
        point = config(batch=batch, data=data, **short | changes)
        return list(compare(run_config(point | {"precision": precision}), layouts))

    return run


@pytest.mark.slow
def test_in_float64_with_batchnorm_they_agree_to_rounding_after_many_steps(layouts_of):
    trained = layouts_of("64-true", steps=6, batch=960, bn_span=40, layouts=SMALL_LAYOUTS)

    assert max(row.difference for row in trained) < 1e-12
    assert {row.steps for row in trained} == {6}
    assert all(row.same_lr and row.has_batchnorm for row in trained)


@pytest.mark.slow
def test_in_float64_they_agree_with_dropout_and_with_spans_over_several_ranks(layouts_of):
    trained = layouts_of(
        "64-true",
        steps=4,
        batch=480,
        bn_span=120,
        layouts=LAYOUTS_OF_SPANS,
        model={"_target_": "provoked.Dropping"},
    )

    assert max(row.difference for row in trained) < 1e-12
    assert max(row.difference for row in trained) > 0  # they were not one run


def test_in_float32_they_agree_to_a_millionth_after_the_first_step(layouts_of):
    trained = layouts_of("32-true", steps=1, layouts=LAYOUTS[::2])

    assert max(row.difference for row in trained) < 1e-6


def test_in_float32_without_batchnorm_they_agree_after_the_epoch(layouts_of):
    trained = layouts_of(
        "32-true", steps=16, layouts=LAYOUTS[:3], model={"_target_": "provoked.Plain"}
    )

    assert max(row.difference for row in trained) < 1e-5
    assert not trained[0].has_batchnorm


@pytest.mark.parametrize("is_reproducible", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_bit_for_bit_on_any_number_of_ranks_if_reproducible_and_only_then(
    layouts_of, is_reproducible
):
    """12 micro-batches a step, with augmented views, BatchNorm, dropout and clipping."""
    trained = layouts_of(
        "32-true",
        steps=3,
        batch=1440,
        bn_span=40,
        layouts=[{"devices": ranks, "micro_batch": 120} for ranks in (1, 2, 4)],
        model={"_target_": "provoked.Dropping"},
        gradient_clip=0.5,
        reproducible=is_reproducible,
    )

    same = [row.difference == 0 for row in trained]
    assert same == [True, is_reproducible, is_reproducible]
    assert (len({row.value for row in trained}) == 1) == is_reproducible


def test_with_batchnorm_over_the_micro_batch_they_do_not_agree(layouts_of):
    """The behaviour of frameworks, which bn_span cures, is seen as different."""
    trained = layouts_of("64-true", steps=2, layouts=LAYOUTS[:2], bn_span="micro")

    assert max(row.difference for row in trained) > 1e-6
    assert not all(row.holds for row in trained)


@pytest.mark.slow
@pytest.mark.parametrize(("module", "is_additive"), [("Module", True), ("Summed", False)])
def test_a_users_module_is_compared_and_what_makes_it_differ_is_said(
    module, is_additive, tmp_path, capsys
):
    words = [
        f"module._target_=users.{module}", "data._target_=users.DataModule", "batch=32",
        "base_batch=32", "metric=val/mse/dataloader_idx_0", "metric_mode=min",
        f"results={tmp_path}", "--layouts=1x1,1x4,2x1", "--precision=64-true",
    ]  # fmt: skip

    code = main(words)

    said = capsys.readouterr().out
    assert code == (not is_additive)
    assert said.count("DIFFERS") == (0 if is_additive else 2)
    assert ("\nsame on every layout: the loss " in said) is not is_additive
    assert ("Take the mean over examples." in said) is not is_additive
    assert ("The largest difference is in " in said) is not is_additive


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, "same"),
        ({"value": 2.51}, "value DIFFERS"),
        ({"value": math.nan}, "value DIFFERS"),
        ({"value": math.nan, "first_value": math.nan}, "same"),
        ({"value": 2.5 + 1e-8}, "same"),
        ({"value": 2.51, "difference": 0.1}, "DIFFERS"),
        ({"value": 2.51, "precision": "32-true"}, "rounding"),
        ({"value": 2.51, "is_reproducible": True}, "value DIFFERS"),
        ({"difference": 2e-8}, "DIFFERS"),
        ({"difference": 2e-8, "in_float32": True}, "rounding"),
    ],
)
def test_a_metric_that_differs_is_told_where_the_weights_agree(changes, verdict):
    split = split_global_batch(32, world_size=2, micro_batch=16, bn_span=1)
    same = {
        "split": split, "precision": "64-true", "difference": 0.0, "same_lr": True, "steps": 3,
        "value": 2.5, "first_value": 2.5, "has_batchnorm": False, "is_own": True,
        "in_float32": False, "is_reproducible": False,
    }  # fmt: skip

    row = Trained(**same | changes)

    assert row.verdict == verdict
    assert (row.same_training and not row.holds) == (verdict == "value DIFFERS")


def test_a_schedule_in_parts_of_the_training_is_compared_over_an_epoch(capsys):
    words = ["schedule=seesaw", "epochs=32", "warmup=2", "batch=256", "bn_span=128"]
    data = ["data.num_train_examples=1024", "--layouts=1x1,1x2", "--precision=64-true"]

    assert main([*words, *data]) == 0
    assert "same" in capsys.readouterr().out


def test_rates_measured_from_gradients_are_compared_by_the_weights(capsys):
    """Each epoch has a rate of the gradients of the one before, which are rounded."""
    words = ["+experiment=alfarra2020", "seed=0", "batch=32", "epochs=8", "schedule.max_batch=512"]

    code = main([*words, "--layouts", "1x2,2x1", "--precision", "64-true"])

    assert code == 0, capsys.readouterr().out


@pytest.mark.parametrize("layout", ["2by4", "2x4x1", "0x4", "x"])
def test_a_layout_that_is_not_one_is_refused_in_a_sentence(layout, capsys):
    assert main(["batch=3840", f"--layouts=1x1,{layout}"]) == 2

    assert capsys.readouterr().err == (
        "Nothing was started.\na layout must be ranks x accumulation steps, both 1 or more; "
        f"got --layouts {layout}. Write 2x4.\n"
    )


def test_a_precision_that_is_not_one_is_refused_before_any_layout_is_trained(capsys):
    assert main(["batch=3840", "bn_span=80", "--precision=64-true,half"]) == 2

    assert "Nothing was started.\nprecision must be" in capsys.readouterr().err


class _Fatal:
    """Ends the process that it is sent to, as the kernel does when memory runs out."""

    def __reduce__(self):
        return os._exit, (9,)


def test_if_the_comparing_process_dies_that_is_said():
    with pytest.raises(ValueError, match=r"^the process that compares the weights must finish"):
        differences_between([_Fatal()])


def test_an_error_of_the_comparing_process_arrives_here(tmp_path):
    with pytest.raises(FileNotFoundError):
        differences_between([tmp_path / "nothing.ckpt"])


def test_a_layout_that_does_not_finish_training_ends_the_command_with_its_reason(capsys):
    words = ["batch=256", "model._target_=provoked.Raising"]

    assert main([*words, "data.num_train_examples=1024", "--layouts=1x1,1x2,3x1"]) == 1

    shown, said = capsys.readouterr()
    assert "accumulation steps) 3x1: batch=256 is no multiple of 3 x 1.\n" in shown
    assert (
        "in 64-true on layout 1 of 2: 1 rank, each with 1 micro-batch of 256 per step ..." in said
    )
    assert "\nThe layouts could not be compared.\nevery layout must finish training; " in said
