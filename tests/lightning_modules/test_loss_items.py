"""A mean over tokens or boxes is one over those of the whole batch, on any layout."""

from functools import partial
from pathlib import Path

import pytest
import torch
from ranks import ask_ranks, train_rank
from users import Masked

from lightning_modules.callbacks.loss_items import LossItems
from sweeper.spec.run_spec import run_spec

EXAMPLES = Path(__file__).parents[2] / "examples"
COMMON = [
    "module=own", "data=own", "batch=16", "base_batch=16", "warmup=0", "epochs=1", "bn_span=null",
    "precision=64-true", "lr_rule=none",
]  # fmt: skip
TEXT = [
    *COMMON, "module._target_=text.TextModule", "+module.width=16",
    "data._target_=text.TextDataModule", "+data.num_sentences=32", "+data.num_val=4",
    "+data.num_train_examples=32", "metric=val/perplexity", "metric_mode=min",
]  # fmt: skip
BOXES = [
    *COMMON, "module._target_=boxes.BoxModule", "+module.width=4",
    "data._target_=boxes.BoxDataModule", "+data.num_train=32", "+data.num_val=4",
    "+data.num_train_examples=32", "metric=val/f1", "metric_mode=max",
]  # fmt: skip
PADDED = [
    *COMMON, "module._target_=users.MaskedModule", "data._target_=users.MaskedDataModule",
    "+data.num_train_examples=48", "metric=val/mse", "metric_mode=min", "loss_items=loss_mask",
]  # fmt: skip
LOCAL = ["comm_hook=post_local_sgd", "comm_hook.start_epoch=1", "devices=2", "comm_hook.workers=2"]
COUNTS = {"text": "loss_items=labels", "boxes": "loss_items=test_loss_items.boxes"}
PROJECTS = {"text": TEXT, "boxes": BOXES}


def boxes(batch):
    """What a user writes to count the boxes of a batch."""
    return sum(len(target["boxes"]) for target in batch[1])


@pytest.fixture(autouse=True)
def _examples(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


def losses(record):
    return [row["train_loss"] for row in record["curve"]]


def weights(folder):
    state = torch.load(folder / "checkpoint.ckpt", weights_only=False)["state_dict"]
    return torch.cat([weight.flatten() for weight in state.values()])


def distance(folder, other):
    """The largest difference between the weights of two runs."""
    return float((weights(folder) - weights(other)).abs().max())


@pytest.mark.parametrize("project", PROJECTS)
def test_micro_batches_have_the_gradient_of_the_batch(run_words, tmp_path, project):
    words = PROJECTS[project]
    run_words(*words, name="whole")
    run_words(*words, "micro_batch=4", name="uncounted")

    records = [
        run_words(*words, COUNTS[project], f"micro_batch={size}", name=f"in {size}")
        for size in (4, 8)
    ]

    assert distance(tmp_path / "uncounted", tmp_path / "whole") > 1e-5
    assert distance(tmp_path / "in 4", tmp_path / "whole") < 1e-9
    assert distance(tmp_path / "in 8", tmp_path / "whole") < 1e-9
    assert losses(records[0]) == pytest.approx(losses(records[1]), rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("project", PROJECTS)
def test_ranks_have_the_gradient_of_the_batch(run_words, grid, tmp_path, project):
    (two,) = grid(*PROJECTS[project], COUNTS[project], "devices=2", "micro_batch=4")
    whole = run_words(*PROJECTS[project], COUNTS[project], name="whole")

    (tmp_path / "two").mkdir()
    record, _ = ask_ranks(partial(train_rank, two), tmp_path / "two" / "rendezvous", world_size=2)

    assert losses(record) == pytest.approx(losses(whole), rel=1e-9)
    assert distance(tmp_path / "two", tmp_path / "whole") < 1e-9


def test_a_micro_batch_without_items_adds_nothing(run_words, tmp_path):
    """A quarter of the examples is all padding, so some micro-batches of one are 0/0."""
    whole = run_words(*PADDED, name="whole")

    parts = run_words(*PADDED, "micro_batch=1", name="parts")

    assert losses(parts) == pytest.approx(losses(whole), rel=1e-9)
    assert distance(tmp_path / "parts", tmp_path / "whole") < 1e-9


@pytest.mark.parametrize(("first_step", "behind"), [(0, 0), (2, 4), (3, 8)])
def test_a_batch_that_grows_within_an_epoch_is_weighted_by_the_items_of_each_step(
    plan, growing, first_step, behind
):
    """2 steps of 2 micro-batches, then 2 of 4; from a step on in which the epoch is resumed."""
    items = LossItems("mask", plan(examples=24, schedule=growing(1 / 3), epochs=1))
    counts = [1, 3, 2, 4, 0, 0, 4, 4, 1, 1, 1, 1][behind:]
    batches = [{"mask": torch.ones(number)} for number in counts]

    shares = [items._fetched for _ in items.windows(iter(batches), 0, first_step)]

    assert [share.items for share in shares] == counts
    assert [share.mean for share in shares] == [2, 2, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1][behind:]


def test_the_train_loss_is_the_mean_over_all_items(run_words):
    """With a rate of 0 it can be computed from the data."""
    still = run_words(*PADDED, "micro_batch=2", "+module.lr=0")

    examples = Masked(0, 48)
    of_items = torch.cat([(e["x"].double() - e["y"])[e["loss_mask"]] ** 2 for e in examples])
    assert losses(still) == [pytest.approx(float(of_items.mean()), rel=1e-6)]


def test_a_batch_without_any_item_fails_the_run(run_words):
    words = [*PADDED, "+data.present=0"]

    with pytest.raises(ValueError, match=r"must have an item .* a batch of 16 examples without"):
        run_words(*words)


def test_a_run_stopped_after_any_step_goes_on_as_if_it_had_not_been(run_words, tmp_path):
    words = [*PADDED, "micro_batch=2", "epochs=1"]
    whole = run_words(*words, name="whole")

    for steps in (1, 2):
        record = run_words(*words, name="stepped", one_step=True)
        assert (record["outcome"], record["steps"]) == ("preempted", steps)
    record = run_words(*words, name="stepped", one_step=True)

    assert losses(record) == losses(whole)
    assert distance(tmp_path / "stepped", tmp_path / "whole") == 0


def test_hooks_that_pass_over_training_data_change_nothing(run_words, tmp_path):
    """All of an epoch is there for them, also where a resumed one has a part behind it."""
    words = [*PADDED, "batch=6", "base_batch=6", "micro_batch=2", "epochs=2"]
    looking = [*words, "module._target_=late_users.LookingModule"]
    plain, whole = run_words(*words, name="plain"), run_words(*looking, name="whole")

    for _ in range(2):
        run_words(*looking, name="stepped", one_step=True)
    record = run_words(*looking, name="stepped")

    assert losses(record) == losses(whole) == losses(plain)
    assert distance(tmp_path / "stepped", tmp_path / "plain") == 0
    assert [row["metrics"] for row in record["curve"]] == [row["metrics"] for row in whole["curve"]]
    assert whole["curve"][0]["metrics"]["val/known"] == 2 * 78


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["module=classifier", "data=digits"], "loss_items must be null with module=classifier"),
        ([*TEXT, *LOCAL], "comm_hook=post_local_sgd cannot be .* got .*, loss_items=labels"),
    ],
)
def test_what_does_not_go_with_it_is_refused(grid, words, sentence):
    (config,) = grid("loss_items=labels", *words)

    with pytest.raises(ValueError, match=sentence):
        run_spec(config)


def test_it_belongs_to_the_identity(grid):
    plain, counted = (run_spec(grid(*TEXT, *words)[0]) for words in ([], ["loss_items=labels"]))

    assert plain.run_id != counted.run_id
