"""Evaluations and checkpoints within epochs: at the same examples, without a trace in training."""

import itertools
import random
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from pytorch_lightning.callbacks import Callback
from ranks import ask_ranks, train_until

from lightning_modules.train import RankContext, train
from sweeper.spec.run_spec import run_spec

MEASURED = ["epoch", "step", "examples_seen", "realised_batch", "lr", "train_loss"]
MEASURED += ["train_accuracy", "val_loss", "val_accuracy", "distance_from_start"]
#: 2 epochs of 10 steps; BatchNorm and every kind of dropout, and an average of the weights.
WORDS = [
    "batch=192", "bn_span=32", "micro_batch=96", "warmup=1", "ema_decay=0.9",
    "model._target_=provoked.Dropping", "precision=64-true",
]  # fmt: skip


class Killed(Exception):
    """Stands for SIGKILL: nothing is saved any more."""


class _Kill(Callback):
    def __init__(self, at: int | None) -> None:
        self._left = at

    def on_train_batch_start(self, trainer, *_) -> None:
        if self._left is not None and trainer.global_step >= self._left:
            raise Killed


@pytest.fixture
def trained(grid, tmp_path, process_group):
    """Train the run of some words, from its checkpoint if there is one: its curve and weights."""
    del process_group

    def run(*words, name="run", kill_at=None, num_train_examples=2000, on_steps=None):
        is_long = any(word.startswith(("steps=", "examples=")) for word in words)
        (config,) = grid(*WORDS, *words, *([] if is_long else ["epochs=2"]))
        config["data"]["num_train_examples"] = num_train_examples
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)

        def join(trainer, module, loaders) -> None:
            del module, loaders
            trainer.callbacks.insert(0, _Kill(kill_at))

        context = RankContext(
            rank=0,
            folder=folder,
            checkpoint=folder / "checkpoint.ckpt",
            on_epoch=lambda rows: None,
            on_steps=on_steps,
            fit=join,
        )
        try:
            record = train(run_spec(config), context)
        except Killed:
            return None
        assert record["outcome"] == "finished"
        return pd.DataFrame(record["curve"]), read_weights(folder)

    return run


def read_weights(folder: Path) -> dict[str, torch.Tensor]:
    return torch.load(folder / "checkpoint.ckpt", weights_only=False)["state_dict"]


def assert_same(first: dict, second: dict, rtol: float = 0.0) -> None:
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        torch.testing.assert_close(second[name], tensor, rtol=rtol, atol=rtol, msg=name)


def test_evaluations_leave_no_trace_in_training(trained):
    """Neither in the weights nor in BatchNorm's statistics, to the last bit."""
    plain, weights = trained(name="plain")
    often, same = trained("evaluate_every=0.3", name="often")

    assert_same(weights, same)
    assert list(often.step) == [3, 6, 9, 12, 15, 18, 20]
    assert list(often.epoch) == [0, 0, 0, 1, 1, 1, 2]
    assert list(often.examples_seen) == [192 * step for step in often.step]
    columns = ["lr", "val_loss", "val_accuracy", "distance_from_start"]
    assert often[columns].iloc[-1].equals(plain[columns].iloc[-1])
    assert not often.val_loss.duplicated().any()


def test_training_means_are_over_the_steps_since_the_last_evaluation(trained):
    plain, _ = trained(name="plain")
    often, _ = trained("evaluate_every=0.3", name="often")

    steps = np.diff(often.step, prepend=0)
    assert (often.train_loss * steps).sum() == pytest.approx(plain.train_loss.sum() * 10)


@pytest.mark.parametrize("batch", [160, 192, 384])
def test_batches_are_evaluated_after_the_same_examples_up_to_a_step(trained, batch):
    """500, 1,000, ... of 2 epochs of up to 2,000 examples, and at the end."""
    curve, _ = trained(f"batch={batch}", "micro_batch=32", "evaluate_every=500", name=str(batch))

    of_epoch = 2000 // batch * batch
    last = 2 * of_epoch
    marks = [*range(500, last + 1, 500)]
    expected = [-(-mark // batch) * batch for mark in marks]
    if batch == 160:  # 12 steps and 1,920 examples an epoch
        assert of_epoch == 1920
    assert list(curve.examples_seen) == sorted({*expected, last})


@pytest.mark.parametrize("micro_batch", [32, 192])
def test_every_layout_has_the_same_rows(trained, micro_batch):
    words = ["evaluate_every=0.3", "schedule=growing_batch", "schedule.milestones=[1]"]
    words += ["schedule.max_batch=512", "schedule.factor=2"]
    one, weights = trained(*words, name="one")
    other, same = trained(*words, f"micro_batch={micro_batch}", name="other")

    assert list(one.realised_batch) == [192] * 3 + [384] * (len(one) - 3)
    pd.testing.assert_frame_equal(one[MEASURED], other[MEASURED], rtol=1e-9, atol=0)
    assert_same(weights, same, rtol=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_killed_at_random_it_goes_on_as_if_nothing_had_happened(trained, seed):
    """With random intervals; a kill loses what came after the last checkpoint and no more."""
    draw = random.Random(seed)
    words = [f"evaluate_every={draw.choice([0.15, 0.3, 500, 1300])}"]
    words += [f"checkpoint_every={draw.choice([0.25, 0.1, 700])}"]
    whole, weights = trained(*words, name="whole")

    kills = sorted(draw.sample(range(1, 20), 3))
    for kill_at in kills:
        micro_batch = draw.choice([32, 96, 192])
        trained(*words, f"micro_batch={micro_batch}", name="parts", kill_at=kill_at)
    parts, same = trained(*words, name="parts")

    pd.testing.assert_frame_equal(whole[MEASURED], parts[MEASURED], rtol=1e-9, atol=0)
    assert_same(weights, same, rtol=1e-9)


def test_killed_on_the_same_layout_it_goes_on_to_the_last_bit(trained):
    words = ["evaluate_every=0.3", "checkpoint_every=0.2"]
    whole, weights = trained(*words, name="whole")

    trained(*words, name="parts", kill_at=5)
    trained(*words, name="parts", kill_at=15)
    parts, same = trained(*words, name="parts")

    pd.testing.assert_frame_equal(whole[MEASURED], parts[MEASURED], check_exact=True)
    assert_same(weights, same)


#: 10 % of 2 epochs of 2,200 examples are 440: 4 steps of 128 lead to 2 x 256; 30 % are 1,320: 4 of
#: 256 lead to 3 x 512. One step of 512 is left of the epoch; the next has four.
RAMP = [
    "batch=128", "micro_batch=64", "schedule=growing_batch", "schedule.milestones=[10,30]",
    "warmup_unit=percent", "warmup=0", "schedule.factor=2", "schedule.max_batch=512",
    "+schedule.rate_exponent=0.5", "evaluate_every=0.2", "checkpoint_every=128",
]  # fmt: skip


@pytest.mark.parametrize("micro_batches", [[64], [32, 128, 64]], ids=["same layout", "others"])
def test_killed_within_a_ramp_it_goes_on_as_if_nothing_had_happened(trained, micro_batches):
    """Before, at and after each growth; to the last bit on the same layout."""
    whole, weights = trained(*RAMP, name="whole", num_train_examples=2200)
    layouts = itertools.cycle(f"micro_batch={micro_batch}" for micro_batch in micro_batches)
    for kill_at in (2, 4, 6, 8, 9, 10):
        trained(*RAMP, next(layouts), name="parts", kill_at=kill_at, num_train_examples=2200)
    parts, same = trained(*RAMP, name="parts", num_train_examples=2200)

    by_step = dict(zip(whole.step, whole.realised_batch, strict=True))
    assert by_step == {4: 128, 6: 256, 7: 256, 9: 512, 10: 512, 11: 512, 12: 512, 13: 512}
    assert list(whole.examples_seen)[-2:] == [2048 + 3 * 512, 2048 + 4 * 512]
    rounding = 0 if len(micro_batches) == 1 else 1e-9
    pd.testing.assert_frame_equal(
        whole[MEASURED], parts[MEASURED], rtol=rounding, atol=0, check_exact=not rounding
    )
    assert_same(weights, same, rtol=rounding)


def test_running_statistics_of_a_ramp_are_those_of_its_largest_batch(trained):
    """At a rate that moves no weight, the same spans of 2,048 examples come in the same order."""
    still = ["base_lr=1e-12", "micro_batch=64", "warmup=0"]
    _, ramp = trained(*still, *RAMP, name="ramp", num_train_examples=2200)
    _, whole = trained(*still, "batch=512", name="whole", num_train_examples=2200)

    assert [name for name in whole if "running" in name]
    assert_same(whole, ramp, rtol=1e-9)


@pytest.mark.parametrize("words", [[], ["reproducible=true"]])
def test_a_ramp_on_two_ranks_is_that_on_one(grid, tmp_path, words):
    """Killed on two within the ramp, and finished on one; to the last bit if reproducible."""
    found = []
    for name, layouts in {"whole": [1], "two": [2], "moved": [2, 1]}.items():
        (tmp_path / name).mkdir()
        for i, devices in enumerate(layouts):
            is_killed = i < len(layouts) - 1
            (config,) = grid(*WORDS, *RAMP, "epochs=2", *words, f"devices={devices}")
            config["data"]["num_train_examples"] = 2200
            answer = partial(train_until, 7 if is_killed else None, config)
            with pytest.raises(EOFError) if is_killed else nullcontext():
                curves = ask_ranks(answer, tmp_path / name / f"{i}", world_size=devices)
        found.append((pd.DataFrame(curves[0])[MEASURED], read_weights(tmp_path / name)))

    (whole, weights), *others = found
    for curve, same in others:
        pd.testing.assert_frame_equal(whole, curve, rtol=1e-9, atol=0)
        assert_same(weights, same, rtol=0 if words else 1e-9)


def draw_layout(draw: random.Random, batch: int) -> list[str]:
    """One or two ranks, and a micro-batch of theirs; BatchNorm spans 32 examples."""
    ranks = draw.choice([1, 2])
    sizes = [size for size in (32, 64, 96, 128) if batch // ranks % size == 0]
    return [f"devices={ranks}", f"micro_batch={draw.choice(sizes)}"]


def draw_interval(draw: random.Random) -> str:
    """A part of an epoch, or a number of examples."""
    return draw.choice([f"{draw.uniform(0.05, 0.9):.2f}", str(draw.randint(100, 1900))])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("is_moved", [False, True], ids=["same layout", "other layouts"])
def test_wherever_it_is_evaluated_saved_and_killed_it_is_the_run_that_was_not(
    grid, tmp_path, seed, is_moved
):
    """SIGKILL before random steps, thrice; bits on the same layout, rounding on others."""
    draw = random.Random(f"{seed} {is_moved}")
    batch = draw.choice([128, 192, 256])
    length = draw.choice(["epochs=2", "steps=13", f"examples={11 * batch}"])
    words = [*WORDS, f"batch={batch}", length, "warmup=0.5"]
    words += [f"{key}_every={draw_interval(draw)}" for key in ("evaluate", "checkpoint")]
    layout = draw_layout(draw, batch)
    kills = [None, *sorted(draw.sample(range(1, 11), 3)), None]

    found = []
    for i, kill_at in enumerate(kills):
        moved = draw_layout(draw, batch) if is_moved and i else layout
        (config,) = grid(*words, *moved)
        config["data"]["num_train_examples"] = 2000
        folder = tmp_path / ("parts" if i else "whole")
        folder.mkdir(exist_ok=True)
        answer = partial(train_until, kill_at, config)
        with pytest.raises(EOFError) if kill_at else nullcontext():
            curves = ask_ranks(answer, folder / f"meeting-{i}", world_size=config["devices"])
            found.append((pd.DataFrame(curves[0])[MEASURED], read_weights(folder)))

    (whole, weights), (parts, same) = found
    rounding = 1e-9 * is_moved
    pd.testing.assert_frame_equal(whole, parts, rtol=rounding, atol=0, check_exact=not is_moved)
    assert_same(weights, same, rtol=rounding)


def test_a_kill_loses_at_most_the_interval(trained, tmp_path):
    trained("checkpoint_every=0.2", name="cut", kill_at=9)

    assert torch.load(tmp_path / "cut/checkpoint.ckpt", weights_only=False)["global_step"] == 8


@pytest.mark.parametrize(
    ("words", "seconds", "is_saved"),
    [(["checkpoint_every=1s"], 1, True), ([], 1800, True), ([], 1, False)],
)
def test_a_time_saves_within_an_epoch(trained, tmp_path, monkeypatch, words, seconds, is_saved):
    """On a clock that goes by itself; without a setting after 30 minutes."""
    clock = itertools.count(step=float(seconds))
    monkeypatch.setattr(
        "lightning_modules.callbacks.checkpoint.time.perf_counter", lambda: next(clock)
    )

    trained(*words, name="cut", kill_at=7)

    path = tmp_path / "cut/checkpoint.ckpt"
    assert path.exists() == is_saved
    assert not is_saved or torch.load(path, weights_only=False)["global_step"] == 7


def test_a_length_in_steps_need_not_end_an_epoch(trained):
    """13 steps are an epoch of 10 and 3 more; the last of them is evaluated and saved."""
    steps = ["warmup=4", "warmup_unit=steps", "schedule=constant"]
    examples = ["examples=2496", "warmup=768", "warmup_unit=examples", "schedule=constant"]
    whole, weights = trained("steps=13", *steps, name="whole")
    trained("examples=2496", *steps, name="parts", kill_at=12)
    parts, same = trained(*examples, name="parts")

    rows = list(zip(whole.epoch, whole.step, whole.examples_seen, strict=True))
    assert rows == [(1, 10, 1920), (1, 13, 2496)]
    pd.testing.assert_frame_equal(whole[MEASURED], parts[MEASURED], check_exact=True)
    assert_same(weights, same)


def test_a_resumed_part_of_an_epoch_says_where_it_began(trained):
    """At step 4 of the 10 of an epoch, of which the run has 7."""
    words, reports = ["steps=7", "warmup=0", "checkpoint_every=0.2"], []
    trained(*words, kill_at=5)
    trained(*words, on_steps=reports.append)

    assert {report.resumed_at for report in reports} == {0.4}


def test_a_length_below_an_epoch_is_evaluated_at_its_end(trained):
    curve, _ = trained("steps=7", "warmup=0", "evaluate_every=0.5")

    assert list(zip(curve.epoch, curve.step, strict=True)) == [(0, 5), (0, 7)]


#: 3 epochs of 3 steps of a module that logs by itself, with an optimizer of its own.
STRANGER = [
    "module._target_=users.Module", "data._target_=users.DataModule", "batch=32",
    "+data.num_train_examples=96", "metric=val/mse/dataloader_idx_0", "metric_mode=min",
    "epochs=3", "warmup=0", "micro_batch=16", "precision=64-true", "bn_span=null",
]  # fmt: skip


def test_early_stopping_acts_at_each_evaluation(run_words):
    """Nothing improves by 100, so that the second evaluation is the last; then, and for good."""
    stopper = (
        "+trainer.callbacks=[{_target_: lightning.pytorch.callbacks.EarlyStopping, "
        "monitor: val/mse/dataloader_idx_0, patience: 0, min_delta: 100.0}]"
    )
    words = [*STRANGER, "evaluate_every=64", stopper]

    record = run_words(*words)
    again = run_words(*words)

    assert [row["step"] for row in record["curve"]] == [2, 4]
    assert [row["epoch"] for row in record["curve"]] == [0, 1]
    assert record["reason"] == again["reason"] == "trained 1.33333 epochs of 3: stopped early"
    assert again["curve"] == record["curve"]


def test_what_validation_logs_is_in_the_row_of_each_evaluation(run_words):
    plain = run_words(*STRANGER, name="plain")
    often = run_words(*STRANGER, "evaluate_every=32", name="often")

    assert [row["step"] for row in often["curve"]] == [*range(1, 10)]
    ends = [often["curve"][i]["metrics"] for i in (2, 5, 8)]
    assert ends == [row["metrics"] for row in plain["curve"]]
    values = [row["metrics"]["val/mse/dataloader_idx_0"] for row in often["curve"]]
    assert len(set(values)) == 9
    assert "train/mse" not in often["curve"][3]["metrics"]  # of the epoch before


def test_a_metric_that_nothing_logs_is_refused_at_the_first_evaluation(run_words, tmp_path):
    """Not at the end of an epoch that may last for hours; `train/mse` may still come."""
    words = [*STRANGER, "evaluate_every=32", "checkpoint_every=32"]

    with pytest.raises(ValueError, match=r"metric must be a name .* got metric=val/acc, it"):
        run_words(*words, "metric=val/acc", name="unknown")
    run_words(*words, "metric=train/mse", name="training", stop_after=1)

    assert not (tmp_path / "unknown/checkpoint.ckpt").exists()  # of the first step


class LogsAtEnds(Callback):
    """Logs at the end of each epoch."""

    def on_train_epoch_end(self, trainer, pl_module) -> None:
        pl_module.log("at_end", float(trainer.current_epoch))


def test_a_metric_that_is_logged_at_ends_of_epochs_is_waited_for(run_words):
    callback = "+trainer.callbacks=[{_target_: test_clock.LogsAtEnds}]"

    record = run_words(*STRANGER, "evaluate_every=32", "metric=at_end", callback)

    assert record["curve"][2]["metrics"]["at_end"] == 0
