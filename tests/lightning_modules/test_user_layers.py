"""Layers, rates and buffers of a user's module mean in a run what they mean in any Trainer."""

import re
from functools import partial

import pytest
import torch
from ranks import ask_ranks, refusal, train_each
from test_user_project import IN_PROCESS, curve

from lightning_modules.callbacks.batch_contract import BatchContractBroken
from sweeper.commands.user_facts import fill_config
from sweeper.spec.identity import scientific_part

LOSS = "val/mse/dataloader_idx_0"


def words_of(kind, *words):
    return [*IN_PROCESS, f"module._target_=odd_users.{kind}", *words]


@pytest.mark.parametrize("span", ["micro", "8"])
def test_what_is_in_evaluation_stays_there(run_words, span):
    """The module itself looks."""
    record = run_words(*words_of("FrozenModule", f"bn_span={span}", "epochs=1"))

    assert record["outcome"] == "finished"


def test_module_and_data_may_keep_other_values_of_one_name(run_words):
    """Lightning merges them for loggers, and refuses."""
    words = words_of("NamedModule", "data._target_=odd_users.NamedDataModule", "epochs=1")

    assert run_words(*words)["outcome"] == "finished"


def test_a_batchnorm_may_be_passed_twice(run_words):
    record = run_words(*words_of("TwiceModule", "bn_span=micro", "epochs=1"))

    assert record["outcome"] == "finished"


def test_dropout_of_other_rows_than_the_examples_is_drawn_by_micro_batch(run_words):
    """And in validation, if a layer is set to training there; the same after a resume."""
    words = words_of("DroppingModule")
    whole = run_words(*words, name="whole")

    for _ in range(4):
        run_words(*words, name="stepped", one_step=True)
    record = run_words(*words, name="stepped")

    for name in (LOSS, "val/spread/dataloader_idx_0"):
        assert curve(record, name) == curve(whole, name)
    assert curve(whole, "val/spread/dataloader_idx_0")[0] > 0
    other = run_words(*words_of("DroppingModule", "+module.p=0.1"), name="less")
    assert curve(other, LOSS) != curve(whole, LOSS)


def test_dropout_is_found_by_its_class_and_may_be_ended(run_words):
    annealed = run_words(*words_of("AnnealedModule", "micro_batch=8"), name="annealed")

    without = run_words(*IN_PROCESS, name="without")

    assert curve(annealed, LOSS) == pytest.approx(curve(without, LOSS), rel=1e-9)


@pytest.mark.parametrize("kind", ["SettingModule", "LateSettingModule"])
def test_the_rule_multiplies_rates_that_are_set_within_a_step(run_words, kind):
    """Linear from 16 to 32 is twice; the ninth step is at 0.09."""
    record = run_words(*words_of(kind, "lr_rule=linear", "micro_batch=8"))

    assert record["last_lr"] == pytest.approx(0.18)
    assert record["base_lr"] == pytest.approx(0.09)


def test_a_scheduler_counts_optimizer_steps(run_words):
    """Lightning counts micro-batches; three steps an epoch, of which the second halves the rate."""
    whole = run_words(*words_of("EverySecondModule", "lr_rule=none"), name="whole")

    words = words_of("EverySecondModule", "lr_rule=none", "micro_batch=8")
    for _ in range(9):
        record = run_words(*words, name="parts", one_step=True)

    assert record["outcome"] == "finished"
    assert record["lr_series_hash"] == whole["lr_series_hash"]
    assert [row["lr"] for row in whole["curve"]] == pytest.approx([0.05, 0.025, 0.0125])


def test_a_modules_own_rates_follow_the_steps_of_a_batch_that_grows_within_an_epoch(run_words):
    """Of 96 examples 4 steps of 8, 2 of 16, 1 of 32; resumed after each of them."""
    ramp = ["batch=8", "epochs=1", "lr_rule=none", "schedule=growing_batch", "schedule.factor=2"]
    ramp += ["warmup_unit=percent", "schedule.milestones=[25,50]", "schedule.max_batch=32"]
    words = words_of("CyclingModule", *ramp)
    whole = run_words(*words, name="whole")

    for _ in range(7):
        record = run_words(*words, "micro_batch=4", name="parts", one_step=True)

    assert (whole["steps"], whole["realised_batch_min"], whole["realised_batch_max"]) == (7, 8, 32)
    assert record["outcome"] == "finished"
    assert record["lr_series_hash"] == whole["lr_series_hash"]
    assert curve(record, LOSS) == pytest.approx(curve(whole, LOSS), rel=1e-9)


@pytest.mark.parametrize(
    ("kind", "error", "sentence"),
    [
        ("AveragingModule", ValueError, "trainer.callbacks must take part .*; got Averaging."),
        ("LazyModule", ValueError, r"got body\.weight of a lazy layer, which has seen no batch"),
        ("IdleModule", ValueError, "configure_optimizers must return the optimizers that train"),
        ("RatelessModule", ValueError, "every group of an optimizer must have a learning rate"),
        ("HalfBareGan", BatchContractBroken, "every optimizer must be stepped through Lightning"),
    ],
)
def test_what_cannot_be_trained_is_refused_with_what_to_do(run_words, kind, error, sentence):
    with pytest.raises(error, match=sentence):
        run_words(*words_of(kind))


@pytest.mark.parametrize("kind", ["UnfreezingModule", "RestingModule"])
def test_what_is_frozen_or_not_survives_a_resume(run_words, kind):
    """One layer is trained from the second epoch on, one is in evaluation since an epoch began."""
    whole = run_words(*words_of(kind), name="whole")

    for _ in range(9):
        record = run_words(*words_of(kind), name="stepped", one_step=True)

    assert record["outcome"] == "finished"
    assert curve(record, LOSS) == curve(whole, LOSS)


def test_what_a_module_saves_is_resumed_from_or_named(run_words):
    """Arrays are; an object needs its class to be named."""
    for _ in range(2):
        record = run_words(*words_of("ArrayModule"), name="array", one_step=True)
    assert record["steps"] == 2

    run_words(*words_of("PathModule"), name="path", one_step=True)
    with pytest.raises(ValueError, match=r"'trusted_classes=\[.*\]'\. To .* rerun=all\.") as told:
        run_words(*words_of("PathModule"), name="path")
    trusted = re.search(r"trusted_classes=\[[\w.,]+\]", str(told.value))[0]
    assert {"odd_users.Kept", "pathlib.PosixPath"} <= {*re.split(r"[\[\],]", trusted)}
    record = run_words(*words_of("PathModule"), trusted, name="path")
    assert (record["outcome"], record["steps"]) == ("finished", 9)


def test_a_module_that_takes_a_dictconfig_is_created_trained_and_resumed(run_words):
    words = words_of("ConfigModule", "+module.cfg={optim:{lr:0.05}}", "+module._convert_=none")
    whole = run_words(*words, name="whole")

    for _ in range(9):
        record = run_words(*words, name="stepped", one_step=True)

    assert record["outcome"] == "finished"
    assert curve(record, LOSS) == curve(whole, LOSS) == curve(run_words(*IN_PROCESS), LOSS)


def test_what_no_run_could_be_resumed_with_is_found_out_and_refused_before_it_starts(
    grid, find_facts
):
    words = words_of("PathModule")
    (config,) = grid(*words)
    found = find_facts(config)

    with pytest.raises(ValueError, match=r"which saves objects of \d more\. If") as told:
        fill_config(dict(config), found)

    trusted = re.search(r"trusted_classes=\[[\w.,]+\]", str(told.value))[0]
    (config,) = grid(*words, trusted)
    assert "trusted_classes" not in scientific_part(fill_config(config, found))


def test_layers_and_metrics_of_torch_need_no_word(run_words):
    for _ in range(2):
        record = run_words(*words_of("PlainModule"), name="plain", one_step=True)

    assert record["steps"] == 2


def test_a_module_that_cannot_be_saved_is_found_out(find_facts):
    project = {
        "module": {"_target_": "odd_users.LambdaModule"},
        "data": {"_target_": "users.DataModule"},
        "seed": 0,
    }

    finding = find_facts(project)["found"]["same after a resume"]

    assert finding["holds"] is None
    assert "lambda" in finding["message"]


def test_data_may_ask_their_trainer_and_have_no_validation(run_words, find_facts):
    data = "odd_users.AskingDataModule"
    project = {"module": {"_target_": "users.Module"}, "data": {"_target_": data}, "seed": 0}

    record = run_words(*IN_PROCESS, f"data._target_={data}", "metric=train_loss", "epochs=1")

    assert find_facts(project)["num_train_examples"] == 96
    assert record["outcome"] == "finished"


def test_data_of_the_modules_own_are_not_passed_over(grid, find_facts):
    (config,) = grid("batch=32", "module=own", "module._target_=odd_users.LoadedModule")

    with pytest.raises(ValueError, match="a module with data of its own must not be"):
        find_facts(config)


def test_a_value_of_the_last_micro_batch_is_no_metric_of_a_run(run_words):
    """It would depend on the layout; what is averaged over the epoch does not."""
    words = words_of("SteppedModule", "epochs=1")

    with pytest.raises(ValueError, match=r"for whole epochs; got metric=loss, which it logs for s"):
        run_words(*words, "metric=loss", "metric_mode=min", name="refused")
    averaged = run_words(*words, "metric=train/mse_epoch", "metric_mode=min", name="averaged")
    words = words_of("TwofoldModule", "epochs=1", "metric=loss", "metric_mode=min")
    validated = run_words(*words)

    assert averaged["outcome"] == validated["outcome"] == "finished"
    assert curve(validated, "loss") == pytest.approx([curve(validated, "val/target")[0]])


@pytest.mark.slow
def test_buffers_are_rank_0s_as_in_any_ddp(grid, tmp_path):
    (config,) = grid(*words_of("CentredModule", "devices=2", "+trainer.limit_val_batches=1"))
    train = partial(train_each, {"centred": config})
    records = ask_ranks(train, tmp_path / "rendezvous", world_size=2)
    saved = torch.load(tmp_path / "centred" / "checkpoint.ckpt", weights_only=False)

    centre = saved["state_dict"]["centre"][0].item()
    for record in records:
        assert curve(record["centred"], "val/centre/dataloader_idx_0")[-1] == pytest.approx(centre)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        ("UnfreezingModule", "got body.weight and 1 more, unfrozen later"),
        ("CodebookModule", "must have the same weights; got different values of code."),
    ],
)
def test_what_would_differ_between_ranks_is_refused(grid, tmp_path, kind, sentence):
    (config,) = grid(*words_of(kind, "devices=2"))

    refusals = ask_ranks(partial(refusal, config), tmp_path / "rendezvous", world_size=2)

    assert all(sentence in text for text in refusals)


@pytest.mark.slow
def test_local_weights_are_averaged_before_they_are_compared_without_validation_too(grid, tmp_path):
    """Three steps an epoch, of which the last is between two averages."""
    local = [f"comm_hook.{key}" for key in ("workers=2", "start_epoch=0", "local_steps=2")]
    data = ["data._target_=odd_users.UnvalidatedDataModule", "metric=train_loss", "epochs=2"]
    words = [*IN_PROCESS, *data, "comm_hook=post_local_sgd", *local, "batch=32", "devices=2"]
    (config,) = grid(*words)
    train = partial(train_each, {"local": config})

    records = ask_ranks(train, tmp_path / "rendezvous", world_size=2)

    assert [record["local"]["outcome"] for record in records] == ["finished", "finished"]


@pytest.mark.slow
def test_noise_on_the_gradient_is_the_same_on_every_layout(run_words, grid, tmp_path):
    words = words_of("LangevinModule")
    (config,) = grid(*words, "devices=2")

    train = partial(train_each, {"ranks": config})
    records = ask_ranks(train, tmp_path / "meeting", world_size=2)

    name = "val/mse/dataloader_idx_0"
    whole = curve(run_words(*words, name="whole"), name)
    assert curve(run_words(*words, "micro_batch=8", name="parts"), name) == pytest.approx(whole)
    assert curve(records[0]["ranks"], name) == pytest.approx(whole)
