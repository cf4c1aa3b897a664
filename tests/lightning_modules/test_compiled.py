"""A compiled run is the run that is not, up to rounding, and is compiled for two sizes only."""

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from acceptance import _distance, _in_a_process, _train
from test_user_project import IN_PROCESS
from torch._dynamo.utils import counters

pytestmark = pytest.mark.skipif(not shutil.which("g++"), reason="inductor needs a C++ compiler")

RUNS = {
    "blocks with dropout in our classifier": [
        "module=language_model", "model._target_=block_users.DroppedBlocks", "data=text",
        "data.name=a", "data.length=9", "data.num_val_examples=20", "data.num_train_examples=64",
        "batch=16", "base_batch=16", "micro_batch=8", "precision=64-true", "epochs=2",
    ],
    "the blocks of a module of a user": [
        *IN_PROCESS, "module._target_=block_users.BlockModule", "micro_batch=8", "epochs=2",
    ],
    "a residual network with ghost BatchNorm": [
        "model=resnet8", "batch=96", "base_batch=48", "bn_span=12", "micro_batch=24", "epochs=2",
        "warmup=0", "schedule=constant", "base_lr=0.01", "precision=64-true",
        "data.num_train_examples=192",
    ],
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_weights_agree_and_nothing_is_compiled_again(run_words, tmp_path, name):
    """For training, for evaluation, and once more for evaluation of any size; no graph breaks."""
    (tmp_path / "letters").write_text("abcdefghij" * 100)
    words = [*RUNS[name], *[f"data.root={tmp_path / 'letters'}"] * ("data=text" in RUNS[name])]
    plain = run_words(*words, name="plain")
    torch.compiler.reset()
    counters.clear()

    compiled = run_words(*words, "compile=true", name="compiled")

    assert counters["graph_break"] == {}
    assert counters["stats"]["unique_graphs"] <= 3
    assert compiled["realised_batch_min"] == plain["realised_batch_min"]
    assert compiled["lr_series_hash"] == plain["lr_series_hash"]
    far = [
        float((a - b).abs().max() / a.abs().max().clamp(min=1e-3))
        for a, b in zip(*(weights(tmp_path / arm) for arm in ("plain", "compiled")), strict=True)
    ]
    assert 0 < max(far) < 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_ranks_agree_with_one_that_is_not_compiled(grid, tmp_path, strategy):
    (tmp_path / "letters").write_text("abcdefghij" * 100)
    words = [*RUNS["blocks with dropout in our classifier"], f"data.root={tmp_path / 'letters'}"]
    (config,) = grid(*words)

    assert 0 < _in_a_process(compare_ranks, {"far": {**config, "strategy": strategy}})["far"] < 1e-9


def compare_ranks(config):
    """How far two compiled ranks are from one that is not; in a process that compiled nothing."""
    layout = {"devices": 2, "compile": True, "checkpoint_activations": True}
    with TemporaryDirectory() as folder:
        plain = _train({**config, "strategy": None}, {}, Path(folder, "plain"))
        compiled = _train(config, layout, Path(folder, "compiled"))
    return 1 if plain is None or compiled is None else _distance(plain, compiled)


def weights(folder):
    saved = torch.load(folder / "checkpoint.ckpt", weights_only=False)["state_dict"]
    return [tensor for tensor in saved.values() if tensor.is_floating_point()]
