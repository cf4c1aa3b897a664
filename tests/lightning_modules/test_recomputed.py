"""Activation checkpointing: a run with it is the run without it, bit for bit."""

import pytest
import torch
from test_user_project import IN_PROCESS, curve

LOSS = "val/mse/dataloader_idx_0"
BLOCKS = [*IN_PROCESS, "module._target_=block_users.BlockModule", "micro_batch=8", "epochs=2"]


@pytest.fixture
def weights_of(run_words, tmp_path):
    def train(*words, name):
        assert run_words(*words, name=name)["outcome"] == "finished"
        saved = torch.load(tmp_path / name / "checkpoint.ckpt", weights_only=False)
        return saved["state_dict"]

    return train


@pytest.mark.parametrize("reentrant", ["false", "true"])
def test_a_users_own_checkpointing_draws_the_same_masks_again(weights_of, reentrant):
    plain = weights_of(*BLOCKS, name="plain")

    again = weights_of(*BLOCKS, f"+module.reentrant={reentrant}", name="again")

    assert all(torch.equal(plain[name], again[name]) for name in plain)


def test_a_second_pass_over_a_micro_batch_is_recomputed_with_its_own_masks(weights_of):
    sam = ["perturbation=sam", "perturbation.gradient_span=8"]
    plain = weights_of(*BLOCKS, *sam, name="plain")

    again = weights_of(*BLOCKS, *sam, "+module.reentrant=false", name="again")

    assert all(torch.equal(plain[name], again[name]) for name in plain)


@pytest.mark.parametrize("reentrant", ["false", "true"])
def test_a_layer_that_is_called_in_several_recomputed_parts_is_refused(run_words, reentrant):
    words = [*BLOCKS, "module._target_=block_users.SharingModule"]

    assert run_words(*words, name="plain")["outcome"] == "finished"
    with pytest.raises(ValueError, match="got 6 calls, 2 of them in a part. Give each call a lay"):
        run_words(*words, f"+module.reentrant={reentrant}", name="shared")
