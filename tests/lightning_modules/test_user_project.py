"""A Lightning project of somebody's own is trained as it is, and counted as ours are."""

import math
from pathlib import Path
from unittest.mock import ANY

import numpy as np
import pandas as pd
import pytest
import users
from torch.utils.data import Subset

from lightning_modules import worker
from lightning_modules.modules.user_project import build_module
from sweeper.spec.run_spec import run_spec

WORDS = [
    "module=own", "module._target_=users.Module", "data=own",
    "data._target_=users.DataModule", "batch=32", "base_batch=16", "lr_rule=linear", "epochs=3",
    "metric=val/mse/dataloader_idx_0",
    "metric_mode=min",
]  # fmt: skip
IN_PROCESS = [*WORDS, "+data.num_train_examples=96", "bn_span=null", "precision=64-true"]


def curve(record, name):
    return [row["metrics"][name] for row in record["curve"]]


def test_every_logged_name_and_the_counted_batch_are_in_the_record(run_words):
    record = run_words(*IN_PROCESS)

    assert (record["outcome"], record["steps"]) == ("finished", 9)
    assert (record["realised_batch_min"], record["realised_batch_max"]) == (32, 32)
    assert (
        curve(record, "val/mse/dataloader_idx_0")[-1] < curve(record, "val/mse/dataloader_idx_0")[0]
    )
    assert {"train/mse", "val/mse/dataloader_idx_1", "val/mae_epoch/dataloader_idx_1"} <= {
        *record["curve"][0]["metrics"]
    }


def test_data_that_are_more_than_was_counted_are_counted_again(run_words, tmp_path):
    attempt = tmp_path / "attempts/0123456789ab/001"
    attempt.mkdir(parents=True)
    counted = tmp_path / "facts/0123456789ab.json"
    counted.parent.mkdir()
    counted.write_text("{}")

    with pytest.raises(ValueError, match="repeat the command, which counts again") as raised:
        run_words(*IN_PROCESS, "data.num_train_examples=64")
    worker._leave_failure(attempt, 0, raised.value)

    assert not counted.exists()


def test_data_are_prepared_then_set_up_and_validated_by_name(run_words, tmp_path):
    words = [*IN_PROCESS, "data._target_=users.PreparedDataModule", f"+data.root={tmp_path}"]

    record = run_words(*words, name="named")

    listed = run_words(*IN_PROCESS, name="listed")
    assert (tmp_path / "downloads").read_text() == "x"
    for name in ("val/mse/dataloader_idx_0", "val/mse/dataloader_idx_1"):
        assert curve(record, name) == curve(listed, name)


def test_a_data_module_that_passes_its_arguments_on_gets_its_own_only(run_words):
    words = [*IN_PROCESS, "data._target_=users.PassingDataModule", "+data.root=here"]

    assert run_words(*words)["outcome"] == "finished"


@pytest.mark.parametrize("micro_batch", [16, 4])
def test_a_micro_batch_changes_nothing(run_words, micro_batch):
    whole = run_words(*IN_PROCESS, name="whole")

    parts = run_words(*IN_PROCESS, f"micro_batch={micro_batch}", name="parts")

    assert parts["lr_series_hash"] == whole["lr_series_hash"]
    for name in ("val/mse/dataloader_idx_0", "val/mae_epoch/dataloader_idx_1"):
        assert curve(parts, name) == pytest.approx(curve(whole, name), rel=1e-9)


def test_a_loss_that_is_no_mean_over_examples_does_change(run_words):
    """What the equality above would not see if nothing were trained."""
    words = [*IN_PROCESS, "module._target_=users.Summed"]
    whole, parts = run_words(*words, name="1"), run_words(*words, "micro_batch=4", name="8")

    name = "val/mse/dataloader_idx_0"
    assert curve(parts, name) != pytest.approx(curve(whole, name), rel=1e-3)


def test_a_run_stopped_after_any_step_goes_on_as_if_it_had_not_been(run_words):
    whole = run_words(*IN_PROCESS, name="whole")

    for steps in range(1, 9):
        record = run_words(*IN_PROCESS, name="stepped", one_step=True)
        assert (record["outcome"], record["steps"]) == ("preempted", steps)
    record = run_words(*IN_PROCESS, name="stepped", one_step=True)

    assert record["lr_series_hash"] == whole["lr_series_hash"]
    for name in ("val/mse/dataloader_idx_0", "val/mae_epoch/dataloader_idx_1"):
        assert curve(record, name) == curve(whole, name)


def test_draws_outside_of_training_steps_do_not_depend_on_what_came_before(run_words):
    words = [*IN_PROCESS, "module._target_=users.Guessing"]
    whole = run_words(*words, name="whole")

    run_words(*words, name="cut", stop_after=1)
    record = run_words(*words, name="cut")

    for name in ("train/start", "val/guess/dataloader_idx_1"):
        assert curve(record, name) == curve(whole, name)
    guesses, starts = curve(whole, "val/guess/dataloader_idx_1"), curve(whole, "train/start")
    assert len(set(guesses)) == 1
    assert len(set(starts)) == len(starts)


def test_the_rule_multiplies_the_rate_of_each_group_and_is_taken_back(run_words, monkeypatch):
    """Linear from 16 to 32 is twice; OneCycle must go on from its own rates."""
    seen = {}

    def trained(name, *words):
        modules = []
        monkeypatch.setattr(
            "lightning_modules.train.build_module",
            lambda component: modules.append(build_module(component)) or modules[-1],
        )
        record = run_words(*IN_PROCESS, *words, name=name)
        seen[name] = modules[0].seen
        return record

    plain, scaled = trained("plain", "lr_rule=none"), trained("scaled", "lr_rule=linear")

    assert seen["plain"] == seen["scaled"]  # after the step they are the module's own
    assert scaled["last_lr"] == pytest.approx(2 * plain["last_lr"])
    assert scaled["peak_lr"] == pytest.approx(2 * plain["peak_lr"])
    assert scaled["base_lr"] == plain["base_lr"] == plain["peak_lr"]
    assert scaled["lr_series_hash"] != plain["lr_series_hash"]


def test_an_optimizer_of_ours_replaces_the_modules(run_words):
    words = [*IN_PROCESS, "optimizer=sgd", "base_lr=0.01", "lr_rule=none", "schedule=cosine"]

    record = run_words(*words)

    assert record["outcome"] == "finished"
    assert record["last_lr"] < 0.01


def test_manual_optimization_is_trained_with_every_optimizer_at_the_rule(run_words):
    words = [*IN_PROCESS, "module._target_=users.Gan", "metric=val/score/dataloader_idx_0"]

    record = run_words(*words, "micro_batch=32", "lr_rule=linear")

    assert (record["outcome"], record["steps"]) == ("finished", 9)
    assert record["last_lr"] == pytest.approx(0.04)  # of the last optimizer, 0.02 twice
    assert "train/gap" in record["curve"][0]["metrics"]
    assert "train_loss" not in record["curve"][0]


def test_a_metric_that_is_not_logged_fails_with_the_names_that_are(run_words):
    with pytest.raises(
        ValueError, match=r"metric must be a name that .* got metric=val/acc, it .*val/mse"
    ):
        run_words(*IN_PROCESS, "metric=val/acc")


def test_early_stopping_ends_a_run_as_finished_and_survives_a_resume(run_words):
    stopper = (
        "trainer.callbacks=[{_target_: lightning.pytorch.callbacks.EarlyStopping, "
        "monitor: val/mse/dataloader_idx_0, patience: 0, min_delta: 100.0}]"
    )
    words = [*IN_PROCESS, "epochs=6", "+" + stopper]

    record = run_words(*words, name="whole")
    run_words(*words, name="cut", stop_after=2)
    resumed = run_words(*words, name="cut")

    assert record["outcome"] == resumed["outcome"] == "finished"
    assert record["reason"] == resumed["reason"] == "trained 2 epochs of 6: stopped early"
    assert len(record["curve"]) == len(resumed["curve"]) == 2


def test_callbacks_may_have_names_and_a_progress_bar_is_one(run_words, grid, capsys):
    """As a group of lightning-hydra-template has them."""
    bar = "_target_: lightning.pytorch.callbacks.TQDMProgressBar"
    stop = "_target_: lightning.pytorch.callbacks.EarlyStopping, monitor: train/mse, patience: 9"
    named = f"+trainer.callbacks={{progress_bar: {{{bar}}}, early_stopping: {{{stop}}}}}"
    listed = f"+trainer.callbacks=[{{{bar}}}, {{{stop}}}]"

    record = run_words(*IN_PROCESS, "epochs=1", named)

    assert record["outcome"] == "finished"
    assert "Epoch 0" in capsys.readouterr().out
    ids = {run_spec(grid(*IN_PROCESS, words)[0]).run_id for words in (named, listed)}
    assert len(ids) == 1


def test_what_a_plan_must_know_is_found_out(find_facts):
    project = {
        "module": {"_target_": "users.Module"},
        "data": {"_target_": "users.DataModule"},
        "seed": 0,
    }

    found = find_facts(project)
    measured = found.pop("found")
    holds = {name for name, finding in measured.items() if finding["holds"]}
    assert found == {
        "num_train_examples": 96, "has_batchnorm": False, "is_automatic": True, "val_batch": 64,
        "refused": {"lengths": ANY},
    }  # fmt: skip
    assert holds == {"same on every layout", "same after a resume", "seeds apply"}, measured
    assert not find_facts({**project, "module": {"_target_": "users.Gan"}})["is_automatic"]
    ours = {"_target_": "lightning_modules.modules.classifier.Classifier"}
    shaped = {"_target_": "users.ShapedDataModule"}
    assert find_facts({**project, "module": ours, "data": shaped}) == {"num_train_examples": 96}


def test_a_split_that_is_drawn_anew_in_each_process_is_found_out(monkeypatch, find_facts):
    class Split(users.DataModule):
        """As with scvi-tools' DataSplitter and sklearn's train_test_split, which take a seed."""

        def setup(self, stage):
            super().setup(stage)
            self.train = Subset(self.train, np.random.default_rng().permutation(96)[:80])

    monkeypatch.setattr(users, "DataModule", Split)
    project = {
        "module": {"_target_": "users.Module"},
        "data": {"_target_": "users.DataModule"},
        "seed": 0,
    }

    found = find_facts(project)["found"]["same after a resume"]

    assert found["holds"] is False
    assert found["message"].startswith("data made a second time have other examples")


def test_an_item_that_raises_is_a_finding_and_no_refusal(monkeypatch, find_facts):
    """The data may need a GPU, or what only another machine has."""

    def fail(*_):
        raise RuntimeError("no GPU here")

    monkeypatch.setattr(users.Noisy, "__getitem__", fail)
    data = {"_target_": "users.DataModule"}

    found = find_facts({"module": {"_target_": "users.Module"}, "data": data})["found"]

    assert found["same on every layout"]["holds"] is None
    assert "no GPU here" in found["same on every layout"]["message"]


@pytest.mark.parametrize("is_contrastive", [True, False])
def test_what_holds_for_a_module_on_data_of_ours_is_found_out_too(grid, is_contrastive, find_facts):
    own = ["module=own", "module._target_=users.DigitsModule"]
    (config,) = grid(*own, f"+module.is_contrastive={is_contrastive}", "data=digits")

    found = find_facts(config)["found"]

    assert found["same on every layout"]["holds"] is not is_contrastive
    assert found["same after a resume"]["holds"]


def test_an_order_by_the_batch_size_is_the_same_on_every_layout(run_words):
    words = [*IN_PROCESS, "data._target_=late_users.GroupedDataModule"]
    whole, parts = run_words(*words, name="1"), run_words(*words, "micro_batch=4", name="8")

    name = "val/mse/dataloader_idx_0"
    assert curve(parts, name) == pytest.approx(curve(whole, name), rel=1e-9)


OURS = "lightning_modules.modules.classifier.Classifier"


@pytest.mark.parametrize(
    ("module", "data", "said"),
    [
        ("users.DataModule", "users.Module",
         "data._target_ must name your data; got users.Module, a LightningModule, whi"),
        ("users.Module", "users.Module", "data._target_ must name your data; got"),
        ("users.DataModule", "users.DataModule",
         "module._target_ must name your module; got users.DataModule, a LightningDataModule,"),
        ("users.Module", "torch.nn.Identity", "data must have num_train_examples; got Id"),
        (OURS, "users.DataModule",
         "data must have input_shape; got DataModule, a LightningDataModule, which has none. Name "
         "your LightningModule with module._target_="),
        (OURS, "users.Module", "data._target_ must name your data; got users.Module"),
    ],
)  # fmt: skip
def test_what_is_no_module_or_no_data_is_refused_with_the_key_where_it_belongs(
    module, data, said, find_facts
):
    project = {"module": {"_target_": module}, "data": {"_target_": data}, "seed": 0}

    with pytest.raises(ValueError, match="; got") as refused:
        find_facts(project)

    assert str(refused.value).startswith(said)


def test_items_that_cannot_be_counted_are_found_out_too(find_facts):
    masked = {
        "module": {"_target_": "users.MaskedModule"},
        "data": {"_target_": "users.MaskedDataModule"},
        "seed": 0,
    }

    assert find_facts({**masked, "loss_items": "loss_mask"})["num_train_examples"] == 48
    with pytest.raises(ValueError, match="loss_items must be a key of the batch"):
        find_facts({**masked, "loss_items": "loss_masks"})


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["base_lr=0.1"], "base_lr must be null with optimizer=module"),
        (["optimizer=sgd"], "base_lr must be given with an optimizer that replaces"),
        (["metric_mode=null"], "metric_mode must be max or min"),
        (["label_smoothing=0.1"], "label_smoothing can be set with module=classifier only"),
        (["+trainer.strategy=fsdp"], "trainer.strategy must be left to the run.*fsdp"),
        (["+trainer.max_epochs=3"], "trainer.max_epochs must be left to the run.*Set epochs"),
        (
            ["+trainer.callbacks=[{_target_: a.GradientAccumulationScheduler}]"],
            "callbacks must leave the batch and the rate to the run.*Use schedule=growing_batch",
        ),
        (
            ["+trainer.callbacks=[{_target_: a.StochasticWeightAveraging}]"],
            "callbacks must take part in each epoch's evaluation, .*Use ema_decay",
        ),
        (["+trainer.gradient_clip=3"], "trainer.gradient_clip must be a setting of Lightning's"),
    ],
)
def test_what_does_not_go_together_is_refused(grid, words, sentence):
    (config,) = grid(*IN_PROCESS, *words)

    with pytest.raises(ValueError, match=sentence):
        run_spec(config)


@pytest.mark.slow
def test_the_command_trains_counts_and_plans(sweep_here, tmp_path):
    """As a user types it: classes named on the command line, nothing stated of them."""
    words = [word for word in WORDS if word not in {"module=own", "data=own"}]
    words += ["+data.root=/nowhere", "batch=32,48", "precision=64-true"]

    def sweep(name, *more):
        assert sweep_here(tmp_path / name, *words, *more) == 0
        runs = pd.read_parquet(tmp_path / name / "runs").sort_values("global_batch")
        metrics = pd.read_parquet(tmp_path / name / "metrics")
        return runs, metrics.sort_values(["run_id", "name", "epoch"])

    runs, metrics = sweep("one")
    others, of_two = sweep("two", "devices=2")

    assert list(runs.run_id) == list(others.run_id)
    assert list(runs.realised_batch_min) == [32, 48]
    assert list(runs.metric_name.unique()) == ["val/mse/dataloader_idx_0"]
    assert all(runs.metric >= runs.best_metric)
    assert runs.val_accuracy.isna().all()
    assert (of_two.name.to_numpy() == metrics.name.to_numpy()).all()
    for_all = ~metrics.name.str.contains("train|_step")  # those are of one rank's micro-batch
    assert of_two.value[for_all.to_numpy()].to_numpy() == pytest.approx(
        metrics.value[for_all].to_numpy(), rel=1e-6
    )
    assert not any(math.isnan(value) for value in metrics.value)
    assert len(list(Path(tmp_path, "one", "facts").iterdir())) == 1
