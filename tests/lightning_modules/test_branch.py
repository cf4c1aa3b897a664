"""Branches: runs that go on from a kept checkpoint of another run, at another batch."""

import json
import re
import shutil
from functools import partial

import pandas as pd
import pytest
from provoked import kill_after

from sweeper.launch.ranks import LocalRanks
from sweeper.store.ledger import Ledger

WORDS = (
    "+experiment=noisy_quadratic",
    "optimizer.momentum=0.9",
    "lr_rule=linear",
    "base_lr=0.01",
    "warmup=0",
    "base_batch=64",
    "data.num_train_examples=1024",
    "epochs=4",
    "precision=64-true",
)
PARENT = (*WORDS, "batch=64", "keep_checkpoint=[1.5,2,4]")
SAME = ["step", "examples_seen", "realised_batch", "lr", "train_loss", "val_loss"]
SAME += ["distance_from_start"]


@pytest.fixture(scope="module")
def grown(sweep_here, tmp_path_factory):
    """A folder with a parent and a branch at each of two batches."""
    results = tmp_path_factory.mktemp("grown")
    assert sweep_here(results, *PARENT) == 0
    assert sweep_here(results, *WORDS, "branch=@2", "batch=64,256") == 0
    return results


@pytest.fixture(scope="module")
def within(sweep_here, grown, tmp_path_factory):
    """A copy of that folder with branches within an epoch instead."""
    results = shutil.copytree(grown, tmp_path_factory.mktemp("within") / "results")
    runs, _ = read(results)
    Ledger(results).supersede([*runs.index[runs.branch.notna()]])
    assert sweep_here(results, *WORDS, "branch=@1.5", "batch=64,256") == 0
    return results


def read(results):
    runs = pd.read_parquet(results / "runs").set_index("run_id")
    curves = pd.read_parquet(results / "curves").sort_values(["run_id", "step"])
    return runs, {run_id: rows.reset_index(drop=True) for run_id, rows in curves.groupby("run_id")}


def branch_at(results, batch):
    runs, curves = read(results)
    run_id = runs.index[runs.branch.notna() & (runs.global_batch == batch)][0]
    return runs.loc[run_id], curves[run_id]


PLACES = pytest.mark.parametrize(("folder", "at"), [("grown", "@2"), ("within", "@1.5")])


@PLACES
def test_a_branch_at_its_parents_batch_is_its_parent_to_the_last_bit(request, folder, at):
    results = request.getfixturevalue(folder)
    runs, curves = read(results)
    parent = runs.index[runs.branch.isna()][0]

    row, curve = branch_at(results, 64)

    assert row.branch == f"{parent}{at}"
    pd.testing.assert_frame_equal(curve[SAME], curves[parent][SAME], check_exact=True)


def test_a_branch_goes_on_with_its_parents_curve_at_its_own_batch_and_rate(grown):
    """1,024 examples: 16 steps of 64 in an epoch, or 4 of 256; linear rule."""
    _, curve = branch_at(grown, 256)

    assert [*curve.realised_batch] == [64, 64, 256, 256]
    assert [*curve.step] == [16, 32, 36, 40]
    assert [*curve.examples_seen] == [1024, 2048, 3072, 4096]
    assert [*curve.lr] == pytest.approx([0.01, 0.01, 0.04, 0.04])


def test_a_branch_within_an_epoch_trains_the_rest_of_it_at_its_own_batch(within):
    """After 24 steps of 64: 2 of 256 to the epoch's end, then 4 in each."""
    _, curve = branch_at(within, 256)

    assert [*curve.realised_batch] == [64, 256, 256, 256]
    assert [*curve.step] == [16, 26, 30, 34]
    assert [*curve.examples_seen] == [1024, 2048, 3072, 4096]
    assert [*curve.lr] == pytest.approx([0.01, 0.04, 0.04, 0.04])


def test_one_command_trains_parents_and_then_their_branches(sweep_here, grown, results):
    words = (*WORDS, "branch=@2,@1.5", "batch=64,256", "seed=0,1", "order=information")

    assert sweep_here(results, *words, ranks=LocalRanks(partial(kill_after, 1))) == 1
    assert sweep_here(results, *words) == 0

    runs, _ = read(results)
    kept = [json.loads(config)["keep_checkpoint"] for config in runs.config_json]
    assert (len(runs), runs.branch.isna().sum()) == (10, 2)
    assert kept.count([1.5, 2]) == 2
    first = runs[(runs.seed == 0) & (runs.global_batch == 256) & (runs.branch.str[-2:] == "@2")]
    _, curve = branch_at(grown, 256)
    found = read(results)[1][first.index[0]]
    pd.testing.assert_frame_equal(found[SAME], curve[SAME], check_exact=True)


def test_branches_of_a_run_that_diverged_are_left_out(sweep_here, results, capsys):
    words = (*WORDS, "branch=@2", "batch=256", "base_lr=0.01,1e12")
    assert sweep_here(results, *words) == 1

    assert sweep_here(results, *words) == 0

    said = capsys.readouterr().out
    assert re.search("1 branch left out: [0-9a-f]{12}, from which branch=@2 begins, diverged", said)
    assert sorted(read(results)[0].outcome) == ["diverged", "failed", "finished", "finished"]
    with pytest.raises(ValueError, match="diverged and kept no checkpoint there"):
        sweep_here(results, *words[:-1], "base_lr=1e12")


def start_anew(grown, results):
    """A copy of the folder without the branch at 256."""
    shutil.copytree(grown, results)
    run_id = branch_at(results, 256)[0].name
    Ledger(results).supersede([run_id])
    shutil.rmtree(results / "attempts" / run_id)
    return results


@PLACES
def test_a_killed_branch_goes_on_from_its_own_checkpoint(sweep_here, request, tmp_path, folder, at):
    trained = request.getfixturevalue(folder)
    results = start_anew(trained, tmp_path / "results")
    words = (*WORDS, f"branch={at}", "batch=256")

    assert sweep_here(results, *words, ranks=LocalRanks(partial(kill_after, 3))) == 1
    killed, before = branch_at(results, 256)
    assert sweep_here(results, *words) == 0

    row, after = branch_at(results, 256)
    assert (killed.outcome, [*before.epoch], row.attempt) == ("preempted", [1, 2, 3], 2)
    pd.testing.assert_frame_equal(after[SAME], branch_at(trained, 256)[1][SAME], check_exact=True)


@PLACES
def test_a_branch_is_the_same_on_another_layout_than_its_parents(
    sweep_here, request, tmp_path, folder, at
):
    trained = request.getfixturevalue(folder)
    results = start_anew(trained, tmp_path / "results")
    layout = ("devices=2", "micro_batch=16")

    assert sweep_here(results, *WORDS, f"branch={at}", "batch=256", *layout) == 0

    row, curve = branch_at(results, 256)
    one, whole = branch_at(trained, 256)
    assert (row.name, row.lr_series_hash) == (one.name, one.lr_series_hash)
    assert (row.world_size, row.accumulation_steps) == (2, 8)
    pd.testing.assert_frame_equal(curve[SAME], whole[SAME], rtol=1e-9)


def test_a_branch_warms_up_from_where_it_begins_and_may_train_for_longer(sweep_here, grown):
    """From the last position, which the parent ended with: 4 steps of 128 to 0.02 in half of 8."""
    parent = branch_at(grown, 64)[0].branch.partition("@")[0]
    words = ("batch=128", "warmup=0.5", "epochs=5", "evaluate_every=128")

    assert sweep_here(grown, *WORDS, f"branch={parent}@4096ex", *words) == 0

    row, curve = branch_at(grown, 128)
    assert row.branch == f"{parent}@4"
    assert [*curve.lr[-8:-3]] == pytest.approx([0.01, 0.0125, 0.015, 0.0175, 0.02])


def test_settings_that_follow_the_batch_are_mapped_anew(sweep_here, results):
    """Half-lives in examples: 0.95 at 64 is 0.95**4 at 256."""
    adam = (*WORDS, "optimizer=adam", "lr_rule=half_life", "optimizer.betas=[0.9,0.95]", "epochs=2")
    adam = [word for word in adam if "momentum" not in word] + ["~optimizer.momentum"]

    assert sweep_here(results, *adam, "batch=128", "keep_checkpoint=all") == 0
    parent = read(results)[0].index[0]
    assert sweep_here(results, *adam, f"branch={parent}@1", "batch=256") == 0

    assert [*branch_at(results, 256)[1].beta2] == pytest.approx([0.95**2, 0.95**4])


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        (["branch=@3"], r"a checkpoint; got branch=@3, .* Train .* keep_checkpoint=\[3\]"),
        (["branch=@1000ex"], r"Train that run with keep_checkpoint=\[EPOCHS\]"),
        (["branch=0123456789ab@2"], "must name a run in .* Take an id from sweeper status"),
        (["branch=@512ex", "seed=1"], "must name a run in .* or give epochs"),
        (["branch=PARENT@2", "seed=1"], "a branch must have the settings .* another seed"),
        (["branch=PARENT@2", "optimizer.momentum=0"], "with another optimizer"),
        (["branch=BRANCH@4"], "got branch=BRANCH@4, which"),
        (["branch=@4"], "epochs must be more than those of the branch's parent"),
        (
            ["branch=PARENT@2", "schedule=seesaw", "schedule.rate_exponent=0"],
            "got branch.*, schedule=seesaw",
        ),
        (
            ["branch=PARENT@2", "epochs=null", "steps=99"],
            "other numbers of steps .* got branch.*, steps=99",
        ),
        (["branch=@1.5", "batch=384"], r"a multiple of its batch, .* after 512 of 1024 examples"),
        (["branch=@0"], "branch must be a run's id and the epochs .* got branch=@0"),
        (["branch=PARENT"], "branch must be a run's id and the epochs"),
        (["branch=PARENT@2", "warmup=3"], "warmup must be shorter"),
    ],
)
def test_what_cannot_be_branched_is_refused(sweep_here, grown, words, refusal):
    branch = branch_at(grown, 64)[0]
    for name, run_id in {"PARENT": branch.branch.partition("@")[0], "BRANCH": branch.name}.items():
        words = [word.replace(name, run_id) for word in words]
        refusal = refusal.replace(name, run_id)

    with pytest.raises(ValueError, match=refusal):
        sweep_here(grown, *WORDS, "batch=256", *words)


def test_a_branch_of_a_branch_is_refused(sweep_here, grown):
    words = (*WORDS, "branch=@2", "batch=512", "keep_checkpoint=true")
    assert sweep_here(grown, *words) == 0
    run_id = branch_at(grown, 512)[0].name

    with pytest.raises(ValueError, match="another branch, as the parent is one itself"):
        sweep_here(grown, *WORDS, f"branch={run_id}@4", "batch=64", "epochs=5")


def test_a_run_that_starts_over_forgets_what_it_kept(sweep_here, grown, tmp_path):
    results = shutil.copytree(grown, tmp_path / "results")

    assert sweep_here(results, *WORDS, "batch=64", "rerun=all") == 0

    with pytest.raises(ValueError, match="where its parent kept a checkpoint"):
        sweep_here(results, *WORDS, "branch=@2", "batch=128")


@pytest.mark.parametrize(
    "words",
    [
        ["equivalence", "base_lr=0.01"],
        ["-m", "hydra/sweeper=optuna", "n_trials=1", "base_lr=tag(log, interval(0.001, 0.02))"],
    ],
)
def test_what_trains_single_runs_needs_a_parent_that_is_trained(command, tmp_path, words):
    rest = [word for word in WORDS if not word.startswith("base_lr")]

    said = command(*words, *rest, "batch=256", "branch=@2", f"results={tmp_path}/results")

    assert "Train it first: the same words with branch=null batch=64." in said.stdout + said.stderr
