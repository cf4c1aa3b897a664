"""Methods that need a loss and one optimizer work for a module of somebody's own."""

from functools import partial

import pytest
import torch
from ranks import ask_ranks, train_each
from test_user_project import IN_PROCESS, curve

from sweeper.spec.noise import NOISE_COLUMNS

COMMON = [*IN_PROCESS, "epochs=1", "lr_rule=none"]
OURS = ["schedule=constant", "base_lr=0.02"]  # an optimizer that replaces the module's
SGD = [*OURS, "optimizer=sgd"]
#: Words of a run without a method, and with it.
METHODS = {
    "ema": ([], ["ema_decay=0.5"]),
    "delay": ([], ["gradient_delay=1"]),
    "sam": ([], ["perturbation=sam", "perturbation.rho=0.5", "perturbation.gradient_span=8"]),
    "adascale": (SGD, [*SGD, "lr_rule=adascale", "base_batch=8"]),
    "vr": (SGD, [*OURS, "optimizer=vr_sgd", "optimizer.gradient_span=8"]),
}
LOGGED = "val/mse/dataloader_idx_0"


def weights(folder):
    state = torch.load(folder / "checkpoint.ckpt", weights_only=False)["state_dict"]
    return torch.cat([weight.flatten() for weight in state.values()])


@pytest.mark.parametrize("method", METHODS)
def test_a_method_changes_what_is_trained_or_evaluated(run_words, method):
    before, words = METHODS[method]
    plain = run_words(*COMMON, *before, name="plain")

    record = run_words(*COMMON, *words, name="method")

    assert record["outcome"] == "finished"
    assert curve(record, LOGGED)[0] != pytest.approx(curve(plain, LOGGED)[0], rel=1e-3)


def test_an_average_of_the_weights_is_the_same_in_micro_batches(run_words):
    whole = run_words(*COMMON, "ema_decay=0.5", name="whole")

    parts = run_words(*COMMON, "ema_decay=0.5", "micro_batch=4", name="parts")

    assert curve(parts, LOGGED) == pytest.approx(curve(whole, LOGGED), rel=1e-9)


def test_the_noise_scale_is_measured_and_changes_nothing(run_words):
    plain = run_words(*COMMON, name="plain")

    record = run_words(*COMMON, "noise_span=8", name="noise")

    assert all(row["noise_scale"] > 0 for row in record["curve"])
    assert curve(record, LOGGED) == pytest.approx(curve(plain, LOGGED), rel=1e-9)


def test_sam_is_noticed_by_no_metric_nor_generator_of_the_module(run_words):
    """`DrawingModule` counts its steps in a metric and draws in each; rho is nothing here."""
    words = [
        *IN_PROCESS, "epochs=1", "module._target_=users.DrawingModule", "micro_batch=8",
        "metric=train/examples", "bn_span=micro",
    ]  # fmt: skip
    plain = run_words(*words, name="plain")

    sam = ["perturbation=sam", "perturbation.rho=1e-30", "perturbation.gradient_span=8"]
    record = run_words(*words, *sam, name="sam")

    assert curve(record, "train/examples") == curve(plain, "train/examples") == [96.0]
    assert curve(record, "val/mean") == curve(plain, "val/mean")
    assert record["curve"][0]["train_loss"] == plain["curve"][0]["train_loss"]


@pytest.mark.slow
def test_two_ranks_train_by_every_method_what_one_does(run_words, grid, tmp_path):
    cases = {name: [*COMMON, *words] for name, (_, words) in METHODS.items()}
    cases["noise"] = [*COMMON, "noise_span=8"]
    cases["reproducible"] = [*COMMON, "reproducible=true", "micro_batch=4"]
    configs = {name: grid(*words, "devices=2")[0] for name, words in cases.items()}
    records, _ = ask_ranks(partial(train_each, configs), tmp_path / "meeting", world_size=2)

    for name, words in cases.items():
        alone = run_words(*words, name=f"{name} alone")
        assert curve(records[name], LOGGED) == pytest.approx(curve(alone, LOGGED), rel=1e-8), name
        for column in NOISE_COLUMNS if name == "noise" else ():
            noise = [[row[column] for row in run["curve"]] for run in (records[name], alone)]
            assert noise[0] == pytest.approx(noise[1], rel=1e-9), column
    assert torch.equal(weights(tmp_path / "reproducible"), weights(tmp_path / "reproducible alone"))
