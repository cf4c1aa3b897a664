"""A run cut off goes on as if nothing had happened, on the same layout or another."""

import shutil
from functools import partial
from pathlib import Path

import pandas as pd
import pytest
import torch
from provoked import train_until

from sweeper.launch.local.launcher import run_here
from sweeper.launch.local.slots import Machine
from sweeper.launch.ranks import LocalRanks
from sweeper.planning.plan import claim_tasks, plan
from sweeper.store.ledger import Ledger

MEASURED = ["train_loss", "train_accuracy", "val_loss", "val_accuracy", "lr", "step"]
MEASURED += ["distance_from_start"]


@pytest.fixture
def train(config):
    """Train a short run on a layout, to its end or until an epoch is complete; its curve so far.

    The model has BatchNorm and every kind of dropout.
    """

    def run(results: Path, until: int | None = None, **layout) -> pd.DataFrame:
        ledger = Ledger(results)
        ledger.prepare()
        short = {"batch": 7680, "warmup": 1, "epochs": 3, "schedule": {"name": "constant"}}
        short["data"] = {**config()["data"], "num_train_examples": 15_360}
        short["model"] = {"_target_": "provoked.Dropping"}
        to_do = claim_tasks(
            plan([config(**short | layout)], ledger), ledger, retry=None, rerun=None
        )
        ranks = LocalRanks() if until is None else LocalRanks(partial(train_until, until))
        for _ in run_here(to_do, ledger, Machine(cores=2), ranks=ranks):
            pass
        return pd.read_parquet(results / "curves").sort_values("epoch", ignore_index=True)

    return run


def test_on_the_same_layout_to_the_last_bit(train, tmp_path):
    whole = train(tmp_path / "whole")

    train(tmp_path / "parts", until=1)
    train(tmp_path / "parts", until=2)
    parts = train(tmp_path / "parts")

    assert list(parts.attempt) == [3, 3, 3]
    pd.testing.assert_frame_equal(parts[MEASURED], whole[MEASURED], check_exact=True)


def test_a_long_curve_is_whole_though_checkpoints_hold_its_last_rows_only(train, tmp_path):
    """The others are in the file of the attempt that made the checkpoint."""
    words = {"epochs": 150, "batch": 15_360, "warmup": 0, "model": {"_target_": "provoked.Plain"}}
    whole = train(tmp_path / "whole", **words)

    train(tmp_path / "parts", until=70, **words)
    (saved,) = (tmp_path / "parts").glob("attempts/*/checkpoint.ckpt")
    states = torch.load(saved, weights_only=False)["callbacks"]
    (curve,) = (state["curve"] for state in states.values() if "curve" in state)
    train(tmp_path / "parts", until=140, **words)
    parts = train(tmp_path / "parts", **words)

    assert len(curve) < 70
    assert len(whole) == 150
    pd.testing.assert_frame_equal(parts[MEASURED], whole[MEASURED], check_exact=True)


def test_an_optimizer_with_state_of_another_type_than_its_weights(train, tmp_path):
    """NAdam has a product in 32 bits beside weights in 64, which torch loads in 64."""
    words = {"precision": "64-true"}
    words["optimizer"] = {"name": "nadam", "_target_": "torch.optim.NAdam"}
    whole = train(tmp_path / "whole", **words)

    train(tmp_path / "parts", until=1, **words)
    parts = train(tmp_path / "parts", **words)

    pd.testing.assert_frame_equal(parts[MEASURED], whole[MEASURED], check_exact=True)


@pytest.mark.parametrize(
    ("first", "then"),
    [
        pytest.param({"devices": 2}, {"devices": 1}, marks=pytest.mark.slow),
        pytest.param({"devices": 1}, {"devices": 4}, marks=pytest.mark.slow),
        ({"micro_batch": 256}, {"micro_batch": 640}),
    ],
    ids=["2 ranks to 1", "1 rank to 4", "another micro-batch"],
)
def test_on_another_layout_up_to_rounding(train, tmp_path, first, then):
    whole = train(tmp_path / "whole", precision="64-true")

    train(tmp_path / "parts", until=1, precision="64-true", **first)
    parts = train(tmp_path / "parts", precision="64-true", **then)

    assert list(parts.attempt) == [2, 2, 2]
    pd.testing.assert_frame_equal(parts[MEASURED], whole[MEASURED], rtol=1e-10, atol=0)


ONE_STEP = 0
STEPS = {"batch": 3840, "epochs": 2, "micro_batch_limit": 768}


def leave_after_each_step(train, results: Path, layouts: list[dict], **words) -> pd.DataFrame:
    """Train a run of two epochs of four steps; every attempt but the last takes one step."""
    for attempt in range(7):
        train(results, until=ONE_STEP, **STEPS, **words, **layouts[attempt % len(layouts)])
        left = pd.read_parquet(results / "runs").iloc[0]
        assert (left.outcome, left.steps) == ("preempted", attempt + 1)
    return train(results, **STEPS, **words, **layouts[0])


@pytest.mark.slow
def test_left_after_each_step_to_the_last_bit(train, tmp_path):
    """Lightning would train the first examples of the epoch again, and never the last."""
    whole = train(tmp_path / "whole", **STEPS, devices=2)

    parts = leave_after_each_step(train, tmp_path / "parts", [{"devices": 2}])

    pd.testing.assert_frame_equal(parts[MEASURED], whole[MEASURED], check_exact=True)
    row = pd.read_parquet(tmp_path / "parts/runs").iloc[0]
    assert (row.realised_batch_min, row.realised_batch_max) == (3840, 3840)


@pytest.mark.slow
def test_ranks_with_weights_of_their_own_are_left_when_they_have_averaged_them(train, tmp_path):
    local = {"name": "post_local_sgd", "workers": 2, "start_epoch": 0, "local_steps": 2}
    words = {**STEPS, "devices": 2, "comm_hook": local}
    whole = train(tmp_path / "whole", **words)

    for steps in (2, 4, 6):
        train(tmp_path / "parts", **words, until=ONE_STEP)
        left = pd.read_parquet(tmp_path / "parts/runs").iloc[0]
        assert (left.outcome, left.steps) == ("preempted", steps)
    parts = train(tmp_path / "parts", **words)

    pd.testing.assert_frame_equal(parts[MEASURED], whole[MEASURED], check_exact=True)


@pytest.mark.slow
def test_left_after_each_step_for_another_layout_up_to_rounding(train, tmp_path):
    layouts = [{"devices": 2}, {"devices": 1}, {"devices": 1, "micro_batch": 640}, {"devices": 3}]
    whole = train(tmp_path / "whole", **STEPS, precision="64-true")

    parts = leave_after_each_step(train, tmp_path / "parts", layouts, precision="64-true")

    pd.testing.assert_frame_equal(parts[MEASURED], whole[MEASURED], rtol=1e-10, atol=0)


def test_cut_off_after_the_last_epoch_only_the_row_is_missing(train, tmp_path):
    whole = train(tmp_path / "whole", keep_checkpoint=True)
    run_id = whole.run_id[0]
    folder = Ledger(tmp_path / "late").run_folder(run_id)
    folder.mkdir(parents=True)
    kept = Ledger(tmp_path / "whole").run_folder(run_id) / "checkpoint.ckpt"
    shutil.copy(kept, folder / "checkpoint.ckpt")

    late = train(tmp_path / "late")

    pd.testing.assert_frame_equal(late[MEASURED], whole[MEASURED], check_exact=True)


def test_what_a_checkpoint_names_is_not_executed(run_words, tmp_path, monkeypatch):
    """Also not where torch is set to trust every file."""
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    marker = tmp_path / "executed"
    (tmp_path / "run").mkdir()
    torch.save({"state_dict": Naming(marker)}, tmp_path / "run" / "checkpoint.ckpt")

    with pytest.raises(ValueError, match=r"^a checkpoint must .* got [\w., ]*pathlib.*rerun=all"):
        run_words("batch=3840", "warmup=0", "epochs=1", num_train_examples=3840)

    assert not marker.exists()


class Naming:
    """Pickled as a call that makes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)
