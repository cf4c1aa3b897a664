"""Activation checkpointing: a run with it is the run without it, bit for bit."""

import pytest
import torch
from acceptance import _distance, _train
from test_user_project import IN_PROCESS

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
    with pytest.raises(ValueError, match="got 6 calls, 2 of them in a part"):
        run_words(*words, f"+module.reentrant={reentrant}", name="shared")


OURS = {
    "gpt": [
        "model=gpt", "model.width=16", "model.heads=2", "model.depth=3", "data=text", "data.name=a",
        "data.length=9", "data.num_val_examples=20", "data.num_train_examples=64", "batch=16",
    ],
    "masked gpt": [
        "model=gpt", "model.width=16", "model.heads=2", "model.depth=3", "data=text", "data.name=a",
        "data.length=9", "data.num_val_examples=20", "data.num_train_examples=64", "batch=16",
        "+data.masked=0.15",
    ],
    "lstm": [
        "model=lstm", "model.width=16", "model.depth=3", "model.dropout=0.2", "data=text",
        "data.name=a", "data.length=9", "data.num_val_examples=20", "data.num_train_examples=64",
        "batch=16",
    ],
    "resnet8": [
        "model=resnet8", "batch=96", "bn_span=12", "data.num_train_examples=192", "warmup=0",
        "schedule=constant",
    ],
}  # fmt: skip


@pytest.mark.parametrize("layout", [{}, {"devices": 2}, {"devices": 2, "strategy": "fsdp"}])
@pytest.mark.parametrize("name", OURS)
def test_our_models_with_recomputed_blocks_are_the_same_bits(grid, tmp_path, name, layout):
    """Of ghost BatchNorm's running statistics too."""
    (tmp_path / "letters").write_text("abcdefghij" * 100)
    root = [f"data.root={tmp_path / 'letters'}"] * (name != "resnet8")
    short = ["precision=64-true", "epochs=2", "base_lr=0.01", "micro_batch=8", *root]
    (config,) = grid(*OURS[name], *short, *["micro_batch=24"] * (name == "resnet8"))

    plain = _train(config, layout, tmp_path / "plain")
    again = _train(config, layout | {"checkpoint_activations": True}, tmp_path / "again")

    assert plain is not None
    assert _distance(plain, again) == 0


def test_a_model_without_repeated_blocks_and_a_module_of_a_user_are_refused(run_words):
    with pytest.raises(ValueError, match=r"needs a model with repeated blocks .*; got SmallCNN"):
        run_words("model=small_cnn", "checkpoint_activations=true", name="none")
    with pytest.raises(ValueError, match="must be null with a module of your own"):
        run_words(*BLOCKS, "checkpoint_activations=true", name="own")
