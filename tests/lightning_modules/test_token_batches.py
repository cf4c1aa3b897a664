"""A batch in tokens of examples of different lengths: filled in order, the same on any layout."""

from functools import partial

import numpy as np
import pytest
import torch
from ragged_users import Module, documents, pad
from ranks import ask_ranks, train_rank
from torch import nn

from lightning_modules.data.token_fill import TokenFill

LENGTHS = [len(text) - 1 for text in documents(60, 0)]
COUNTED = [
    "+data.num_train_examples=60", f"+epoch_tokens={sum(LENGTHS)}",
    f"+longest_example={max(LENGTHS)}",
]  # fmt: skip
PROJECT = [
    "module=own", "module._target_=ragged_users.Module", "data=own",
    "data._target_=ragged_users.DataModule", "metric=val/loss", "metric_mode=min", "bn_span=null",
    "warmup=0", "epochs=2", "lr_rule=none", "precision=64-true", "loss_items=ragged_users.count",
    "batch=96", "base_batch=96", "batch_unit=tokens",
]  # fmt: skip
RAGGED = [*PROJECT, *COUNTED]


def fill_by_hand(order):
    """The examples of each step of an epoch of 96 tokens a step."""
    steps, room = [[]], 96
    for example in order:
        if LENGTHS[example] > room:
            steps.append([])
            room = 96
        steps[-1].append(example)
        room -= LENGTHS[example]
    return steps[: sum(LENGTHS) // 96]


def order_of(epoch):
    return np.random.Generator(np.random.Philox(key=[0, epoch])).permutation(60).tolist()


@pytest.fixture(scope="module")
def by_hand():
    """Weights after two epochs of plain steps, each on unpadded documents one by one."""
    torch.manual_seed(0)
    module, texts = Module().double(), documents(60, 0)
    optimizer = module.configure_optimizers()
    for step in [step for epoch in range(2) for step in fill_by_hand(order_of(epoch))]:
        optimizer.zero_grad()
        losses = [module.loss(pad([texts[i]])) * LENGTHS[i] for i in step]
        (sum(losses) / sum(LENGTHS[i] for i in step)).backward()
        optimizer.step()
    return nn.utils.parameters_to_vector(module.parameters()).detach()


def distance(folder, weights):
    state = torch.load(folder / "checkpoint.ckpt", weights_only=False)["state_dict"]
    return float((torch.cat([w.flatten() for w in state.values()]) - weights).abs().max())


def check_counts(record):
    steps = [step for epoch in range(2) for step in fill_by_hand(order_of(epoch))]
    tokens = [sum(LENGTHS[i] for i in step) for step in steps]
    examples = [len(step) for step in steps]
    assert record["steps"] == len(steps)
    assert (record["step_tokens_min"], record["step_tokens_max"]) == (min(tokens), max(tokens))
    assert record["realised_batch_min"] == min(examples)
    assert record["realised_batch_max"] == max(examples)


@pytest.mark.parametrize("micro_batch", [96, 48, 32])
def test_steps_are_those_of_a_plain_loop_over_documents(run_words, tmp_path, by_hand, micro_batch):
    """That fills them by hand, and knows neither padding nor micro-batches."""
    record = run_words(*RAGGED, f"micro_batch={micro_batch}", "+data.num_workers=1")

    assert record["outcome"] == "finished"
    assert distance(tmp_path / "run", by_hand) < 1e-12
    check_counts(record)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_ranks_have_the_same_steps(grid, tmp_path, by_hand, strategy):
    (two,) = grid(*RAGGED, "micro_batch=24", "devices=2", f"strategy={strategy}")

    record, _ = ask_ranks(partial(train_rank, two), tmp_path / "rendezvous", world_size=2)

    assert distance(tmp_path, by_hand) < 1e-12
    check_counts(record)


def test_a_run_stopped_after_each_step_goes_on_with_other_micro_batches(
    run_words, tmp_path, by_hand
):
    sizes = [96, 48, 32]
    for steps in range(1, 9):
        words = [*RAGGED, f"micro_batch={sizes[steps % 3]}"]
        record = run_words(*words, one_step=True)
        assert record["steps"] == steps

    record = run_words(*RAGGED, "micro_batch=48")

    assert distance(tmp_path / "run", by_hand) < 1e-12
    check_counts(record)


def test_the_loss_of_an_epoch_is_the_mean_over_its_tokens_in_any_micro_batches(run_words):
    records = [run_words(*RAGGED, f"micro_batch={size}", name=str(size)) for size in (96, 32)]

    whole, parts = ([row["train_loss"] for row in record["curve"]] for record in records)
    assert whole == pytest.approx(parts, rel=1e-12)


def test_a_sampler_that_only_orders_is_filled_in_its_order(run_words):
    steps = fill_by_hand([*range(60)][::-1])

    record = run_words(*RAGGED, "micro_batch=96", "+data.order=backwards")

    assert record["realised_batch_max"] == max(map(len, steps))
    assert record["realised_batch_min"] == min(map(len, steps))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["+data.order=twice", "data.num_train_examples=61"], "needs each example once in an epo"),
        (["loss_items=ragged_users.count_padded"], "got 162 of a step of 86, in epoch 1"),
        ([f"epoch_tokens={sum(LENGTHS) + 1}"], "the tokens that were planned; got "),
    ],
)
def test_data_that_differ_from_the_plan_fail_the_run(run_words, words, said):
    with pytest.raises(ValueError, match=said):
        run_words(*RAGGED, "micro_batch=96", *words)


def test_a_plan_counts_the_tokens_of_all_documents_and_of_the_longest(find_facts):
    project = {"module": {"_target_": "ragged_users.Module"}, "trial": False}
    data = {"data": {"_target_": "ragged_users.DataModule"}, "loss_items": "ragged_users.count"}

    found = find_facts({**project, **data, "batch_unit": "tokens"})

    assert (found["epoch_tokens"], found["longest_example"]) == (sum(LENGTHS), max(LENGTHS))
    assert found["num_train_examples"] == 60
    assert "epoch_tokens" not in find_facts({**project, **data})


@pytest.mark.parametrize("parts", [1, 3, 4])
def test_each_step_is_the_longest_run_that_fits_and_each_part_has_an_example(parts):
    """Of random lengths, also 0, in 200 epochs; the longest is a fifth of the budget or less."""
    draws = np.random.default_rng(0)
    epochs = [draws.integers(0, 9, size=draws.integers(80, 120)) for _ in range(200)]
    for tokens in epochs:
        steps = int(tokens.sum()) // 40
        fill = TokenFill(lambda _, t=tokens: t, budget=40, parts=parts, steps=steps)
        places, found = fill.epoch(0)

        assert places[0, 0] == 0
        assert (places[1:, 0] == places[:-1, -1]).all()
        assert (np.diff(places) > 0).all()
        for (first, *_, end), number in zip(places, found, strict=True):
            assert number == tokens[first:end].sum() <= 40
            assert end == len(tokens) or tokens[first : end + 1].sum() > 40
