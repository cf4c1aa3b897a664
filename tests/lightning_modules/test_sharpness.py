"""Sharpness against whole Hessians, and what its command says."""

import hashlib

import numpy as np
import pandas as pd
import pytest
import torch
from torch.func import functional_call
from torch.nn import functional

from lightning_modules.curvature.hessian import measure_sharpness
from lightning_modules.data.digits import Digits
from lightning_modules.data.randomness import epoch_order
from lightning_modules.models.small_cnn import SmallCNN
from sweeper.spec.config import run_config

WORDS = (
    "batch=64", "bn_span=32", "epochs=1", "warmup=0", "data.num_train_examples=512",
    "model.channels=[2,2]", "model.hidden=4", "precision=64-true", "base_lr=0.5",
)  # fmt: skip


def whole_hessian(model, images, labels):
    """The Hessian and the gradient of the mean loss, in evaluation mode."""
    named = dict(model.eval().named_parameters())
    flat = torch.cat([p.detach().flatten() for p in named.values()])

    def loss(flat):
        parts = flat.split([p.numel() for p in named.values()])
        state = {k: v.view_as(p) for (k, p), v in zip(named.items(), parts, strict=True)}
        return functional.cross_entropy(functional_call(model, state, images), labels)

    hessian = torch.autograd.functional.hessian(loss, flat)
    (gradient,) = torch.autograd.functional.jacobian(loss, (flat,))
    return hessian, gradient


@pytest.mark.parametrize(
    "layout",
    [["micro_batch=64"], ["micro_batch=32"], ["devices=2", "micro_batch=16"]],
    ids=" ".join,
)
def test_it_is_that_of_the_whole_hessian(run_words, grid, tmp_path, layout):
    run_words(*WORDS, "micro_batch=64")
    (config,) = grid(*WORDS, *layout)
    checkpoint = tmp_path / "run" / "checkpoint.ckpt"
    model = SmallCNN((1, 8, 8), 10, channels=[2, 2], hidden=4).double()
    weights = torch.load(checkpoint, weights_only=True)["evaluated_weights"]
    model.load_state_dict({k: v for k, v in weights.items() if k in model.state_dict()})
    data = Digits(num_train_examples=512, num_val_examples=360, validation_fold=0)
    data.set_epoch(0, 0)
    order = torch.from_numpy(epoch_order(0, 0, 512))
    images, labels = data.train_examples(order)
    images = images.double()

    found = measure_sharpness(run_config(config), checkpoint)

    hessian, _ = whole_hessian(model, images, labels)
    along = []
    for i in range(0, 512, 64):
        h, g = whole_hessian(model, images[i : i + 64], labels[i : i + 64])
        along.append(float(g @ h @ g / (g @ g)))
    assert found["sharpness"] == pytest.approx(float(torch.linalg.eigvalsh(hessian)[-1]), rel=1e-4)
    assert found["batch_sharpness"] == pytest.approx(np.mean(along), rel=1e-9)
    assert found["batch_sharpness_se"] == pytest.approx(np.std(along, ddof=1) / 8**0.5, rel=1e-9)
    assert (found["examples"], found["batch"], found["step"], found["lr"]) == (512, 64, 8, 0.125)


def test_the_loss_is_that_over_the_items_which_was_trained(run_words, grid, tmp_path):
    """The mean over tokens of a batch is not the mean of its micro-batches' means."""
    words = [
        "module=own", "module._target_=users.WeighedModule", "data=own",
        "data._target_=users.MaskedDataModule", "+data.num_train_examples=48", "batch=16",
        "base_batch=16", "warmup=0", "epochs=1", "metric=val/mse", "metric_mode=min",
        "precision=64-true", "bn_span=null", "loss_items=loss_mask",
    ]  # fmt: skip
    run_words(*words, "micro_batch=16")
    checkpoint = tmp_path / "run" / "checkpoint.ckpt"

    whole, *parts = (
        measure_sharpness(run_config(grid(*words, f"micro_batch={size}")[0]), checkpoint)
        for size in (16, 4, 2)
    )

    for part in parts:
        for name in ("sharpness", "batch_sharpness"):
            assert part[name] == pytest.approx(whole[name], rel=1e-9)


OWN = ("metric_mode=min", "warmup=0", "batch=32", "epochs=2", "module=own",
       "data=own", "data._target_=users.DataModule")  # fmt: skip


def test_the_command_measures_what_a_run_has_kept(sweep_here, command, results):
    words = (*WORDS, "precision=32-true", "epochs=2")
    assert sweep_here(results, *words, "keep_checkpoint=all") == 0
    assert sweep_here(results, *words, "seed=1") == 0
    runs = pd.read_parquet(results / "runs").set_index("seed").run_id
    kept = sorted((results / "attempts" / runs[0]).glob("*.ckpt"))
    before = [hashlib.md5(path.read_bytes()).digest() for path in kept]

    measured = command("sharpness", runs[0][:5], "--results", results)

    assert measured.returncode == 0, measured.stderr
    rows = pd.read_parquet(results / "sharpness")
    assert list(rows["run_id"]) == [runs[0]] * 2
    assert list(rows["step"]) == [8, 16]
    assert list(rows["epochs"]) == [1.0, 2.0]
    assert (rows["sharpness"] > rows["batch_sharpness"]).all()
    assert f"{rows['sharpness'][0]:.4g}" in measured.stdout
    assert [hashlib.md5(path.read_bytes()).digest() for path in kept] == before
    for run, why in (
        ("nosuch", "a run must be named by its id; got nosuch."),
        (runs[1], f"a run must have kept checkpoints, none damaged; got {runs[1]}. Train it with"),
    ):
        refused = command("sharpness", run, "--results", results)
        assert refused.returncode == 2
        assert why in refused.stderr
    kept[1].write_bytes(kept[1].read_bytes()[:-9])
    assert "none damaged" in command("sharpness", runs[0], "--results", results).stderr
    command("delete", runs[0], "--results", results)
    assert not list((results / "sharpness").iterdir())


def test_a_module_with_metrics_is_measured_and_one_that_takes_its_steps_is_refused(
    sweep_here, command, results
):
    for module, metric in (("late_users.BestModule", "mse"), ("users.Gan", "score")):
        words = (f"module._target_={module}", f"metric=val/{metric}/dataloader_idx_0")
        assert sweep_here(results, *OWN, *words, "keep_checkpoint=true") == 0
    runs = pd.read_parquet(results / "runs").set_index("model").run_id

    measured = command("sharpness", runs["BestModule"], "--results", results)
    refused = command("sharpness", runs["Gan"], "--results", results)

    assert measured.returncode == 0, measured.stderr
    assert (pd.read_parquet(results / "sharpness")["sharpness"] > 0).all()
    assert refused.returncode == 2
    assert (
        "leaves its steps to Lightning; got automatic_optimization=False of Gan" in refused.stderr
    )
