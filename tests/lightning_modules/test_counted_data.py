"""Data that can only be iterated are trained in their own order, in batches that are counted."""

import itertools
import os
from functools import partial
from unittest.mock import ANY

import datasets
import pytest
import torch
from ranks import ask_ranks, train_until
from test_user_project import IN_PROCESS, curve
from torch.utils.data import DataLoader, IterableDataset
from users import Endless, StreamModule

from lightning_modules.data.counted_loaders import CountedBatches, CountedValidation, count_data
from lightning_modules.rank_plan import RankPlan
from sweeper.spec.run_spec import run_spec
from sweeper.store.run_columns import planned_row

WORDS = [
    *IN_PROCESS, "epochs=2", "module._target_=users.StreamModule",
    "data._target_=users.StreamDataModule", "metric=val/mse",
]  # fmt: skip
FACTS = {
    "module": {"_target_": "users.StreamModule"},
    "data": {"_target_": "users.StreamDataModule"},
    "seed": 0,
}


@pytest.fixture
def train(run_words):
    """The record of a run, and what it was trained on."""

    def go(*words, **settings):
        StreamModule.trained.clear()
        return run_words(*WORDS, *words, **settings), [*StreamModule.trained]

    return go


def test_every_batch_is_exact_and_every_example_comes_once_an_epoch(train):
    record, trained = train("micro_batch=8")

    assert (record["realised_batch_min"], record["realised_batch_max"]) == (32, 32)
    assert (record["outcome"], record["steps"]) == ("finished", 6)
    first, second = trained[:96], trained[96:]
    assert len(set(first)) == len(set(second)) == 96
    assert first != second
    assert sorted(round(100 * -x) for x in first) == pytest.approx(range(96), abs=5)


def test_examples_that_fill_no_batch_are_left_out(train):
    """As of data with indices: 2 steps of 40, and 16 examples are not trained on."""
    record, trained = train("batch=40", "micro_batch=20", "base_batch=40")

    assert (record["steps"], len(trained)) == (4, 160)


def test_a_run_stopped_after_any_step_goes_on_as_if_it_had_not_been(train):
    words = ["batch=48", "micro_batch=8", "base_batch=48"]
    whole, trained = train(*words, name="whole")

    parts = []
    for steps in range(1, 4):
        record, part = train(*words, name="stepped", one_step=True)
        assert (record["outcome"], record["steps"]) == ("preempted", steps)
        parts += part
    record, part = train(*words, name="stepped", one_step=True)

    assert parts + part == trained
    assert curve(record, "val/mse") == curve(whole, "val/mse")


def test_data_that_end_too_early_fail_the_run(train):
    with pytest.raises(ValueError, match=r"must give 16 whole micro-batches of 8 .* after 12"):
        train("micro_batch=8", num_train_examples=128)


def test_processes_that_leave_out_incomplete_micro_batches_fail_the_run(train):
    """Each of 2 has 48 examples: one micro-batch of 32 and 16 that make none."""
    with pytest.raises(ValueError, match=r"must give 3 whole micro-batches of 32 .* after 2"):
        train("+data.num_workers=2")


def test_the_examples_are_counted_once_or_stated(find_facts):
    known = find_facts(FACTS)
    found = known.pop("found")
    assert found["same on every layout"]["holds"] is None
    assert not found["same on every layout"]["is_layouts"]
    assert known == {
        "num_train_examples": 96, "is_iterable": True, "most_ranks": 1, "has_batchnorm": False,
        "is_automatic": True, "val_batch": 64, "refused": {"lengths": ANY},
    }  # fmt: skip
    data = {**FACTS["data"], "num_train_examples": 50}
    assert find_facts({**FACTS, "data": data})["num_train_examples"] == 50


def test_passes_that_do_not_repeat_themselves_are_found_out(find_facts):
    turning = {"_target_": "late_users.TurningDataModule"}

    same, other = (find_facts({**FACTS, **more})["found"] for more in ({}, {"data": turning}))

    assert same["same after a resume"]["holds"]
    assert other["same after a resume"]["holds"] is False
    assert other["same after a resume"]["message"].startswith("data made a second time have")


def test_the_row_says_that_only_the_count_is_promised(grid):
    (config,) = grid(*WORDS)

    plain, counted = run_spec(config), run_spec({**config, "data_order": "counted"})

    assert planned_row(plain)["data_order"] == "global"
    assert planned_row(counted)["data_order"] == "counted"
    assert plain.run_id == counted.run_id


class Numbers(IterableDataset):
    """As WebDataset: a stage of it divides the shards by the rank that is in the environment."""

    def __init__(self):
        self.pipeline = [split_by_node]

    def __iter__(self):
        return ({"n": n} for n in split_by_node(range(96)))


def split_by_node(numbers):
    return itertools.islice(numbers, int(os.environ["RANK"]), None, int(os.environ["WORLD_SIZE"]))


def hugging_face():
    """Four shards of 24 numbers, shuffled."""

    def count_up(starts):
        yield from ({"n": n} for start in starts for n in range(start, start + 24))

    starts = {"starts": [0, 24, 48, 72]}
    stream = datasets.IterableDataset.from_generator(count_up, gen_kwargs=starts)
    return stream.shuffle(seed=1, buffer_size=10)


class Shuffled(IterableDataset):
    """Shuffled as a whole by torch's generator; each rank then takes its part."""

    def __init__(self, part=0, parts=1):
        self.part = slice(part, None, parts)

    def shard(self, num_shards, index):
        return Shuffled(index, num_shards)

    def __iter__(self):
        return ({"n": n} for n in torch.randperm(96).tolist()[self.part])


@pytest.mark.parametrize("make", [Numbers, hugging_face, Shuffled])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_ranks_divide_a_stream_exactly(grid, monkeypatch, make, num_workers):
    """Each example is on one of two ranks, once an epoch, in training and in validation."""
    (config,) = grid(*WORDS, "devices=2", "micro_batch=16")
    loader = DataLoader(make(), batch_size=5, num_workers=num_workers)
    trained, validated = [], []
    monkeypatch.setenv("WORLD_SIZE", "2")

    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        plan = RankPlan(run_spec(config), rank=rank)
        training = CountedBatches(loader, plan)
        training.set_epoch(1)
        trained += [batch["n"].tolist() for batch in training]
        validated += [batch["n"].tolist() for batch in CountedValidation(loader, plan)]

    assert [len(batch) for batch in trained] == [16] * 6
    for batches in (trained, validated):
        assert sorted(itertools.chain(*batches)) == list(range(96))


@pytest.mark.slow
def test_a_stream_on_two_ranks_is_resumed_by_skipping(grid, tmp_path):
    """Killed before its fifth step of six, after the fourth was saved."""
    words = ["data._target_=users.DividedDataModule", "devices=2", "checkpoint_every=32"]
    (config,) = grid(*WORDS, *words, "precision=64-true")

    def go(name, kill_at):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        meeting = folder / f"meeting-{kill_at}"
        curves = ask_ranks(partial(train_until, kill_at, config), meeting, world_size=2)
        return curves[0], torch.load(folder / "checkpoint.ckpt", weights_only=False)["state_dict"]

    whole, weights = go("whole", None)
    with pytest.raises(EOFError):
        go("parts", 4)
    parts, same = go("parts", None)

    assert [row["realised_batch"] for row in whole] == [32, 32]
    assert [row["metrics"] for row in parts] == [row["metrics"] for row in whole]
    torch.testing.assert_close(same, weights, rtol=0, atol=0)


def test_data_without_an_end_must_be_stated():
    sentence = (
        r"data.num_train_examples must be given for data without an end, .* more than 0 s to "
        r"count; got none, and Endless had given 1 example by then. Write \+data.num_train_examples"
    )

    with pytest.raises(ValueError, match=sentence):
        count_data(DataLoader(Endless()), within_s=0)


def test_data_without_an_end_are_trained_on_as_far_as_stated(train):
    record, _ = train("data._target_=users.EndlessDataModule")

    assert (record["outcome"], record["steps"]) == ("finished", 6)
