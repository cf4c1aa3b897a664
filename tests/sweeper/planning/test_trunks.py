"""Lengths on one trunk: what is trained once, in which order, after which kills and failures."""

import json
import shutil
from functools import partial

import pandas as pd
import pytest
from provoked import kill_after

from sweeper.commands.sweep import run_sweep
from sweeper.launch.local.launcher import run_here
from sweeper.launch.local.slots import Machine
from sweeper.launch.ranks import LocalRanks

#: 20 steps in an epoch.
WORDS = (
    "+experiment=noisy_quadratic",
    "optimizer.momentum=0.9",
    "base_lr=0.01",
    "warmup=0",
    "batch=64",
    "data.num_train_examples=1280",
    "precision=64-true",
)
SAME = ["step", "examples_seen", "lr", "train_loss", "val_loss", "distance_from_start"]


def rows(results):
    """The rows by length, with the steps that each began after."""
    runs = pd.read_parquet(results / "runs").sort_values("epochs").set_index("epochs")
    return runs.assign(began=[int(f"{at}".partition("@")[2] or 0) for at in runs.trunk])


def curves(results):
    found = pd.read_parquet(results / "curves").sort_values(["run_id", "step"])
    return found.reset_index(drop=True)[["run_id", *SAME]]


@pytest.fixture(scope="module")
def by_hand(sweep_here, tmp_path_factory):
    results = tmp_path_factory.mktemp("by_hand")
    assert sweep_here(results, *WORDS, "schedule=wsd", "epochs=1,2,4") == 0
    return results


@pytest.fixture(scope="module")
def trained(sweep_here, tmp_path_factory):
    results = tmp_path_factory.mktemp("trained")
    assert sweep_here(results, *WORDS, "lengths=[1,2]", "cooldown=0.2") == 0
    return results


@pytest.fixture
def extended(trained, tmp_path):
    """A copy of that folder, to change."""
    return shutil.copytree(trained, tmp_path / "results")


def test_a_plan_says_what_the_runs_of_a_trunk_save(command, tmp_path):
    """Lengths 1, 2, 4, 8 with a cooldown of 20 %: 6.4 + .2 + .4 + .8 + 1.6 = 9.4 of 15."""
    words = [*WORDS, "lengths=[8,1,2,4]", "cooldown=0.2", f"results={tmp_path}"]

    said = command("plan", *words).stdout

    assert "9.4 epochs to train in place of 15: runs of one trunk share its steps." in said
    assert [line.split()[4] for line in said.splitlines() if line.endswith("new")] == [
        "20", "24", "48", "96",
    ]  # fmt: skip


def test_lengths_in_tokens_are_told_in_tokens(command, tmp_path):
    """Examples of 32 tokens: 160 and 320 - 128 of them."""
    words = ["model=gpt", "data.num_train_examples=400", "data.length=32", "batch=16", "warmup=0"]
    words += ["lengths=[5120,10240]", "lengths_unit=tokens", "cooldown=0.2", f"results={tmp_path}"]

    assert "11,264 tokens to train in place of 15,360" in command("plan", *words).stdout


def test_the_time_of_a_run_is_that_of_the_steps_left_to_it(command, trained):
    """Of 80 and 160 steps, 48 and 96 are left."""
    words = [*WORDS, "lengths=[4,8]", "cooldown=0.2", f"results={trained}", "--json"]

    four, eight = json.loads(command("plan", *words).stdout)["runs"]

    assert (four["steps_to_train"], eight["steps_to_train"]) == (48, 96)
    assert eight["predicted_parts_s"]["steps"] == pytest.approx(
        2 * four["predicted_parts_s"]["steps"]
    )
    assert four["trunk"].endswith("@32")
    assert eight["trunk"] == f"{four['run_id']}@64"


def test_a_later_command_goes_on_with_the_trunk_of_an_earlier(sweep_here, extended, by_hand):
    before = rows(extended)

    assert sweep_here(extended, *WORDS, "lengths=[2,4]", "cooldown=0.2") == 0

    after = rows(extended)
    assert [*after.began] == [0, 16, 32]
    assert after.trunk[4] == f"{before.run_id[2]}@32"
    assert [*after.attempt] == [1, 1, 1]
    pd.testing.assert_frame_equal(curves(extended), curves(by_hand), check_exact=True)


def test_a_later_length_in_between_begins_before_its_own_cooldown(sweep_here, results, by_hand):
    """After 16 of 40 steps, although the trunk goes on to 64."""
    assert sweep_here(results, *WORDS, "lengths=[1,4]", "cooldown=0.2") == 0

    assert sweep_here(results, *WORDS, "lengths=[2]", "cooldown=0.2") == 0

    assert [*rows(results).began] == [0, 16, 16]
    pd.testing.assert_frame_equal(curves(results), curves(by_hand), check_exact=True)


def test_with_room_for_all_a_run_waits_for_the_shorter_ones(grid, results):
    configs = grid(*WORDS, "lengths=[1,2,4]", "cooldown=0.2", f"results={results}")

    assert run_sweep(configs, lambda *given: run_here(*given, Machine(cores=8, jobs=8))) == 0

    assert [*rows(results).began] == [0, 16, 32]


def test_after_a_kill_at_any_length_the_same_command_gives_the_same(sweep_here, results, by_hand):
    words = (*WORDS, "lengths=[1,2,4]", "cooldown=0.2")

    for epoch in (1, 2, 3):
        assert sweep_here(results, *words, ranks=LocalRanks(partial(kill_after, epoch))) == 1
    assert sweep_here(results, *words) == 0

    assert [*rows(results).began] == [0, 16, 32]
    pd.testing.assert_frame_equal(curves(results), curves(by_hand), check_exact=True)


def test_a_shorter_run_that_fails_does_not_hold_the_longer_ones_up(sweep_here, results):
    """Its steps before the cooldown are then trained by the next."""
    slow = ("data=digits", "model._target_=provoked.Slow", "+model.seconds=0.05", "bn_span=null")
    common = (word for word in WORDS[2:] if "momentum" not in word)
    words = (*common, *slow, "lengths=[2,4,8]", "cooldown=0.2", "timeout_s=0.001")

    assert sweep_here(results, *words) == 1

    assert [*rows(results).outcome] == ["timed_out"] * 3
    assert sweep_here(results, *words[:-1]) == 0
    assert [*rows(results).began] == [0, 32, 64]


def test_what_is_trained_anew_begins_on_no_old_trunk(sweep_here, extended):
    old = {path.stat().st_ino for path in extended.glob("trunks/*/*")}

    assert sweep_here(extended, *WORDS, "lengths=[1,2]", "rerun=all") == 0

    new = {path.stat().st_ino for path in extended.glob("trunks/*/*")}
    assert [*rows(extended).attempt] == [2, 2]
    assert [*rows(extended).began] == [0, 16]
    assert len(new) == len(old) == 2
    assert not new & old


def test_a_deleted_run_leaves_nothing_on_its_trunk(sweep_here, command, extended):
    command("delete", rows(extended).run_id[2], "--results", extended)

    assert sweep_here(extended, *WORDS, "lengths=[4]", "cooldown=0.2") == 0

    assert rows(extended).began[4] == 16


def test_a_damaged_checkpoint_of_a_trunk_is_not_begun_from(sweep_here, extended, by_hand):
    (path,) = extended.glob("trunks/*/32-*")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)

    assert sweep_here(extended, *WORDS, "lengths=[4]", "cooldown=0.2") == 0

    assert rows(extended).began[4] == 16
    pd.testing.assert_frame_equal(curves(extended), curves(by_hand), check_exact=True)


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        (
            ["lengths=[3]", "cooldown=0.21"],
            "47.4 steps. Nearest epochs that work: 5",
        ),
        (["lengths=[33]", "lengths_unit=steps"], "26.4 steps. Nearest steps that work: 30, 35;"),
        (["lengths=[64,128]", "lengths_unit=examples"], "Nearest examples that work: 320"),
        (["lengths=[2,4]", "warmup=1.8"], "schedule.cooldown must begin after the warmup"),
        (["lengths=[2,2]"], "lengths must be a list of different whole numbers"),
        (["lengths=2"], r"such as lengths=\[2,4,8\]; got lengths=2"),
        (["cooldown=0.2"], "such as .*; got cooldown=0.2"),
        (["lengths=[2]", "lengths_unit=weeks"], "lengths_unit must be one of epochs, steps"),
        (["lengths=[2]", "steps=4"], r"only words on the length, .* got lengths=\[2\] steps=4"),
        (["lengths=[2]", "schedule=cosine"], "and their schedule wsd; got .* schedule=cosine"),
        (["lengths=[50]", "warmup=5", "warmup_unit=percent"], "got lengths=.*percent"),
        (["lengths=[5]", "lr_rule=adascale", "optimizer=sgd"], "got lengths=.*adascale"),
    ],
)
def test_what_shares_no_trunk_is_refused_in_a_sentence(sweep_here, results, words, refusal):
    with pytest.raises(ValueError, match=refusal):
        sweep_here(results, *WORDS, *words)
