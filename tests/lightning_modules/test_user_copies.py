"""A module may copy, save and look at itself and its parts as under a plain Trainer."""

import copy
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from copying_users import HOOKS, LayeredModule
from ranks import ask_ranks, train_each
from test_user_project import IN_PROCESS, curve
from torch import nn

from lightning_modules.layers.batch_position import StepPosition
from lightning_modules.layers.ghost_batchnorm import fix_batchnorm_span
from lightning_modules.layers.keyed_dropout import key_dropout
from lightning_modules.modules.user_project import build_data, build_module
from lightning_modules.run_class import run_class
from sweeper.spec.run_spec import run_spec

LOSS = "val/mse/dataloader_idx_0"
#: Loads each file in a process that cannot import us.
LOADER = """
import pickle, sys, torch
class Refuse:
    def find_spec(self, name, path=None, target=None):
        assert name.split(".")[0] not in ("sweeper", "lightning_modules", "analysis"), name
sys.meta_path.insert(0, Refuse())
sys.path.insert(0, sys.argv[1])
from copying_users import CopyingModule
from torch import nn
for path in sys.argv[2:]:
    with open(path, "rb") as file:
        thing = torch.load(file, weights_only=False) if path.endswith(".pt") else pickle.load(file)
    whole = "-whole" in path
    assert type(thing) is (CopyingModule if whole else nn.Sequential), path
    body = thing.body if whole else thing
    kinds = [type(layer) for layer in body]
    assert kinds == [nn.Linear, nn.BatchNorm1d, nn.Tanh, nn.Dropout, nn.Linear], kinds
    body.train()(torch.ones(2, 4).to(body[0].weight))
    body.load_state_dict(body.state_dict())
print("loaded", len(sys.argv) - 2)
"""


def words_of(kind, *words):
    return [*IN_PROCESS, "bn_span=4", f"module._target_=copying_users.{kind}", *words]


@pytest.mark.parametrize("held", ["part", "list", "whole"])
def test_a_teacher_that_is_copied_while_training_is_the_same_on_every_micro_batch(run_words, held):
    words = words_of("SnapshotModule", "batch=16", f"+module.held={held}")

    records = [run_words(*words, f"micro_batch={m}", name=str(m)) for m in (16, 8, 4)]

    for name in (LOSS, "teacher"):
        whole, *parts = [curve(record, name) for record in records]
        assert len(set(whole)) > 1
        for part in parts:
            assert part == pytest.approx(whole, rel=1e-9)


@pytest.mark.slow
def test_a_teacher_that_is_copied_while_training_is_the_same_on_two_ranks(
    run_words, grid, tmp_path
):
    words = words_of("SnapshotModule", "batch=16", "+module.held=list")
    whole = run_words(*words, name="whole")
    torch.distributed.destroy_process_group()
    (config,) = grid(*words, "devices=2", "micro_batch=4")

    train = partial(train_each, {"two": config})
    records = ask_ranks(train, tmp_path / "meeting", world_size=2)
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )

    for record in records:
        for name in (LOSS, "teacher"):
            assert curve(record["two"], name) == pytest.approx(curve(whole, name), rel=1e-9)


def test_a_copy_draws_masks_of_its_own_at_the_runs_position():
    position, x = StepPosition(), torch.ones(4, 100)
    layer = key_dropout(nn.Dropout(0.5), seed=0, position=position)
    teacher, again = copy.deepcopy(layer), copy.deepcopy(layer)

    def masks(epoch):
        position.move(epoch=epoch, step=0, first_example=0, examples=4)
        return [part(x) for part in (layer, teacher, again)]

    first, second = masks(0), masks(1)

    assert torch.equal(first[1], first[2])
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first[1], second[1])


def test_a_copy_made_within_an_epoch_has_the_statistics_of_its_own_spans():
    """Those of the epoch's start, then of the spans that it was trained on."""
    position, x = StepPosition(), torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
    layer = fix_batchnorm_span(nn.BatchNorm1d(3), span=2, position=position)
    plain = nn.BatchNorm1d(3)
    for index, part in enumerate(x.split(4)):
        first = {"step": index, "step_start": 4 * index, "first_example": 4 * index}
        position.move(epoch=0, examples=4, **first)
        layer(part)
        if index == 0:
            teacher = copy.deepcopy(layer)
        else:
            teacher(part)
            for span in part.split(2):
                plain(span)

    for part in position.layers:
        part.merge_ranks(6)

    torch.testing.assert_close(teacher.running_var, plain.running_var)
    torch.testing.assert_close(teacher.running_mean, plain.running_mean)
    assert not torch.allclose(layer.running_var, teacher.running_var)


def test_a_module_copies_and_saves_itself_in_every_hook(run_words, tmp_path):
    folder = tmp_path / "saved"
    folder.mkdir()

    record = run_words(*words_of("CopyingModule", f"+module.folder={folder}", "epochs=1"))

    assert record["outcome"] == "finished", record["reason"]
    files = sorted(map(str, folder.iterdir()))
    assert {Path(name).name.split("-")[0] for name in files} == {*HOOKS, "training_step"}
    loaded = subprocess.run(
        [sys.executable, "-c", LOADER, str(Path(__file__).parents[1]), *files],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert loaded.stdout == f"loaded {len(files)}\n", loaded.stderr


def test_nothing_is_set_on_a_users_module():
    module = build_module({"_target_": "copying_users.LayeredModule"})
    plain = LayeredModule()
    assert {*vars(module)} == {*vars(plain)}

    run_class(module).follow_hook("setup", lambda: None)

    assert {*vars(module)} == {*vars(plain)}
    assert type(type(module)()) is LayeredModule
    assert not any(isinstance(value, type(lambda: 0)) for value in vars(module).values())


def test_a_checkpoint_of_a_run_is_loaded_by_the_users_class(run_words, tmp_path):
    run_words(*words_of("LayeredModule"), "epochs=1", "keep_checkpoint=true")

    saved = torch.load(tmp_path / "run" / "checkpoint.ckpt", weights_only=True)

    model = LayeredModule()
    model.load_state_dict(saved["state_dict"])
    loaded = LayeredModule.load_from_checkpoint(tmp_path / "run" / "checkpoint.ckpt")
    assert isinstance(loaded.body[1], nn.BatchNorm1d)
    assert torch.equal(loaded.body[1].running_var, model.body[1].running_var)


@pytest.mark.parametrize("decay", ["null", "0.8"])
def test_plain_torch_loads_the_evaluated_weights_of_a_model_by_its_own_names(
    run_words, grid, tmp_path, decay
):
    words = [
        "model=torchvision", "model.name=resnet18", "data.num_train_examples=512", "batch=128",
        "base_batch=128", "bn_span=32", "epochs=1", "warmup=0", f"ema_decay={decay}",
    ]  # fmt: skip
    record = run_words(*words)

    saved = torch.load(tmp_path / "run" / "checkpoint.ckpt", weights_only=True)

    config = run_spec(*grid(*words)).config
    data = build_data(config.data, config.module.target, 1)
    model = config.model.build(data.input_shape, data.num_classes).eval()
    model.load_state_dict(saved["evaluated_weights"], strict=True)
    inputs, labels = data.val_examples(0, data.num_val_examples)
    accuracy = (model(inputs).argmax(1) == labels).double().mean()
    assert accuracy == pytest.approx(record["curve"][-1]["val_accuracy"], abs=0.01)
    raw = model.load_state_dict({k[6:]: v for k, v in saved["state_dict"].items()})
    assert not raw.missing_keys
    assert torch.equal(model.fc.weight, saved["evaluated_weights"]["fc.weight"]) == (
        decay == "null"
    )


def test_a_model_of_a_user_may_leave_parameters_unused_on_several_ranks(grid, tmp_path):
    (config,) = grid(
        "model=own", "model._target_=provoked.Unused", "data.num_train_examples=256", "batch=64",
        "epochs=1", "base_batch=64", "bn_span=16", "warmup=0", "devices=2", "micro_batch=16",
    )  # fmt: skip

    train = partial(train_each, {"two": config})
    records = ask_ranks(train, tmp_path / "meeting", world_size=2)

    assert [record["two"]["outcome"] for record in records] == ["finished", "finished"]
