"""Ranks step on their own from a step on, and average their weights every few steps."""

from types import SimpleNamespace

import pytest
import torch
from ranks import ask_ranks, local_steps

from lightning_modules.methods.local_sgd import PostLocalSGD, average_weights


@pytest.mark.slow
def test_two_ranks_average_their_weights_after_local_steps_and_at_the_epochs_end(tmp_path):
    """The rate is 0.1, the gradients w and 4 w.

    One shared step by their mean: 1 - 0.25 = 0.75. Two local steps, to 0.75 * 0.9^2 and
    0.75 * 0.6^2, whose mean both take; then one more, averaged because the epoch ends.
    """
    (weight, agreed), other = ask_ranks(local_steps, tmp_path / "rendezvous", world_size=2)

    assert weight == pytest.approx(0.75 * (0.9**2 + 0.6**2) / 2 * (0.9 + 0.6) / 2, rel=1e-12)
    assert agreed == [True, False, True, False]
    assert other == (weight, agreed)


def test_local_steps_begin_with_the_first_whole_step_of_their_start(fit, line, batches, noting):
    """Half of an epoch of 3 steps: after the second."""
    local = PostLocalSGD(local_steps=2, start_step=0.5 * 3)
    are_local = noting("on_train_batch_end", lambda *_: local.is_local)

    fit(line(), [local, are_local], batches(3), accumulate=1)

    assert are_local.noted == [False, True, True]


def test_each_rank_goes_on_with_its_own_momentum():
    checkpoint = {"optimizers_of_ranks": ["first", "second"], "optimizer_states": ["first"]}
    local = PostLocalSGD(local_steps=2, start_step=0)

    local.on_load_checkpoint(SimpleNamespace(global_rank=1), None, checkpoint)

    assert checkpoint["optimizer_states"] == ["second"]


def test_the_momentum_of_all_ranks_is_saved(process_group):
    del process_group
    checkpoint = {"optimizer_states": [{"momentum": torch.ones(2)}]}

    PostLocalSGD(local_steps=2, start_step=0).on_save_checkpoint(None, None, checkpoint)

    torch.testing.assert_close(
        checkpoint["optimizers_of_ranks"], [{"momentum": torch.ones(2)}], rtol=0, atol=0
    )


def test_a_resumed_run_is_as_many_steps_into_its_local_ones(fit, line, batches, noting, tmp_path):
    """After step 3 of local steps from 1 on, weights were averaged last after 3; next after 5."""
    whole, resumed = (PostLocalSGD(local_steps=2, start_step=1) for _ in range(2))

    fit(line(), [whole], batches(6), save=tmp_path / "one.ckpt")
    starts = noting("on_train_batch_start", lambda *_: resumed.is_local)
    fit(line(), [resumed, starts], batches(2), epochs=2, resume=tmp_path / "one.ckpt")

    assert whole.is_agreed
    assert starts.noted == [True, True]  # two micro-batches of step 4
    assert not resumed.is_agreed  # 4 steps are behind


def test_averaging_keeps_the_memory_format_of_weights(process_group):
    del process_group
    model = torch.nn.Conv2d(2, 3, 3).to(memory_format=torch.channels_last)
    before = model.weight.detach().clone()

    average_weights(model)

    torch.testing.assert_close(model.weight.detach(), before)
    assert model.weight.is_contiguous(memory_format=torch.channels_last)
