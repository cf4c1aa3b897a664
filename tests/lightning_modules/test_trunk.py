"""Lengths on one trunk: each row is that of the run of that length by hand, to the last bit."""

import pandas as pd
import pytest
import torch

#: 10 steps of 192 in an epoch; BatchNorm and every kind of dropout.
WORDS = [
    "batch=192", "bn_span=32", "micro_batch=96", "warmup=0.5", "optimizer.momentum=0.9",
    "model._target_=provoked.Dropping", "data.num_train_examples=2000", "keep_checkpoint=true",
]  # fmt: skip
WSD = ["schedule=wsd", "schedule.cooldown=0.2"]
#: Columns of time, and of where a run began.
OTHER = ["wall_s", "start_s", "train_s", "examples_per_s", "peak_memory_gib", "started_at"]
OTHER += ["trunk", "config_json", "predicted_s", "predicted_least_s", "predicted_most_s"]


def read(results):
    runs = pd.read_parquet(results / "runs").set_index("run_id").sort_index()
    curves = pd.read_parquet(results / "curves").sort_values(["run_id", "step"])
    return runs, curves.reset_index(drop=True).drop(columns="elapsed_s")


def weights(results, run_id):
    path = results / "attempts" / run_id / "checkpoint.ckpt"
    saved = torch.load(path, weights_only=True)
    return {**saved["state_dict"], **saved["evaluated_weights"]}


def assert_same(results, by_hand):
    (runs, curves), (theirs, their_curves) = read(results), read(by_hand)
    pd.testing.assert_frame_equal(
        runs.drop(columns=OTHER), theirs.drop(columns=OTHER), check_exact=True
    )
    pd.testing.assert_frame_equal(curves, their_curves, check_exact=True)
    for run_id in runs.index:
        own, others = weights(results, run_id), weights(by_hand, run_id)
        assert all(torch.equal(own[name], others[name]) for name in others)


@pytest.mark.parametrize(
    "words",
    [
        ["lengths=[1,2,4]", "ema_decay=0.9"],
        ["lengths=[10,25,40]", "lengths_unit=steps", "evaluate_every=300", "update_angle=true"],
        pytest.param(
            ["lengths=[1920,4800]", "lengths_unit=examples", "gradient_delay=2", "noise_span=96"],
            marks=pytest.mark.slow,
        ),
    ],
)
def test_each_length_is_the_run_by_hand_to_the_last_bit(sweep_here, tmp_path, words):
    """Whether its decay begins with an epoch or within one, which a shorter run cuts short."""
    own, others = tmp_path / "trunk", tmp_path / "by_hand"
    lengths, *rest = words
    unit = next((w.partition("=")[2] for w in rest if w.startswith("lengths_unit")), "epochs")
    rest = [word for word in rest if not word.startswith("lengths_unit")]

    assert sweep_here(own, *WORDS, *words, "cooldown=0.2") == 0
    listed = lengths.removeprefix("lengths=[").removesuffix("]")
    assert sweep_here(others, *WORDS, *rest, *WSD, f"{unit}={listed}") == 0

    assert_same(own, others)
    assert read(own)[0].trunk.notna().sum() == len(listed.split(",")) - 1


def test_schedulers_of_a_users_module_are_refused_before_a_step(sweep_here, results):
    words = ["module._target_=users.Module", "data._target_=users.DataModule", "batch=32"]
    words += ["metric=val/mse", "metric_mode=min", "lengths=[5]", "cooldown=0.2"]

    with pytest.raises(ValueError, match=r"without schedulers of its own.*; got OneCycleLR"):
        sweep_here(results, *words)
    assert sweep_here(results, *words, "trial=false") == 1

    (row,) = read(results)[0].itertuples()
    assert "lengths need a module without schedulers of its own" in row.reason
    assert "got OneCycleLR" in row.reason
    assert row.steps == 0
