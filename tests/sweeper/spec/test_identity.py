"""A run's identity: what can change its numbers, and nothing else."""

import json
import subprocess
import sys

import pytest

from sweeper.spec.config import Facts, Incidental, RunConfig, Scientific
from sweeper.spec.identity import run_id, words
from sweeper.spec.run_spec import run_spec


def test_every_config_key_is_on_one_side(default_config):
    assert set() == {*Scientific.model_fields} & {*Incidental.model_fields}
    assert {*RunConfig.model_fields} == {*Scientific.model_fields, *Incidental.model_fields}
    filled_in = {"loss_span", "epoch_tokens", "longest_example"}
    assert {*RunConfig.model_fields} - set(default_config) == filled_in
    assert not {*Facts.model_fields} & {*default_config, *RunConfig.model_fields}


@pytest.mark.parametrize(
    "changes",
    [
        {"batch": 7680},
        {"warmup": 10},
        {"base_lr": 0.07},
        {"seed": 1},
        {"epochs": 31},
        {"bn_span": 64},
        {"precision": "64-true"},
        {"lr_rule": {"name": "sqrt"}},
    ],
    ids=str,
)
def test_science_changes_the_identity(config, changes):
    assert run_spec(config(**changes)).run_id != run_spec(config()).run_id


@pytest.mark.parametrize(
    "changes",
    [
        {"devices": 2},
        {"micro_batch": 128},
        {"micro_batch_limit": 256},
        {"threads": 2},
        {"results": "elsewhere"},
        {"accelerator": "cpu"},
        {"timeout_s": 60},
        {"comm_hook": {"name": "all_reduce", "nccl_algo": "tree"}},
        {"reproducible": True, "micro_batch": 384},  # the sums are the same up to rounding
        {"data": {"root": "/elsewhere"}},
    ],
    ids=str,
)
def test_layout_and_place_do_not_change_the_identity(config, changes):
    if "data" in changes:
        changes = {"data": config()["data"] | changes["data"]}

    assert run_spec(config(**changes)).run_id == run_spec(config()).run_id


def test_keys_that_are_off_may_be_absent_as_in_an_earlier_versions_config(default_config):
    on = {key: v for key, v in default_config.items() if v is not None and v is not False}

    assert len(on) < len(default_config)
    assert run_spec(on).run_id == run_spec(default_config).run_id


@pytest.mark.parametrize(
    ("group", "name"),
    [
        *(("module", n) for n in ("root", "num_workers", "about", "benchmark", "profiler")),
        ("schedule", "margin"),
        ("lr_rule", "measured_in"),
    ],
)
def test_every_argument_of_what_is_the_users_own_counts(config, group, name):
    one, two = (config(**{group: {"_target_": "mine.f", name: value}}) for value in (1, 2))

    assert run_id(one) != run_id(two)


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("lightning_modules.models.SmallCNN", "lightning_modules.elsewhere.SmallCNN", True),
        ("lightning_modules.models.SmallCNN", "lightning_modules.models.LargeCNN", False),
        ("myproject.models.SmallCNN", "myproject.nets.SmallCNN", False),
    ],
)
def test_a_class_of_ours_may_move_to_another_file_and_the_users_goes_by_its_path(
    config, one, other, is_same
):
    one, other = ({**config()["model"], "_target_": target} for target in (one, other))

    assert (run_id(config(model=one)) == run_id(config(model=other))) == is_same


def test_number_formats_and_key_order_do_not_change_the_identity(config):
    def numbered(kind):
        optimizer = {**config()["optimizer"], "weight_decay": kind(0)}
        return config(base_lr=0.1, warmup=kind(5), optimizer=optimizer)

    assert run_id(dict(reversed(numbered(float).items()))) == run_id(numbered(int))


@pytest.mark.parametrize(
    ("group", "key"), [("trainer", "limit_val_batches"), ("module", "part"), ("lr_rule", "floor")]
)
def test_what_others_read_counts_as_it_was_given(config, group, key):
    """Of Lightning's Trainer 1 is one batch and 1.0 all of them."""
    given = {"_target_": "myproject.Class", "name": "x"} if group != "trainer" else {}
    one, all_of_it = (config(**{group: {**given, key: number}}) for number in (1, 1.0))

    assert run_id(one) != run_id(all_of_it)
    assert words(one)[f"{group}.{key}"][0] == "1"
    assert words(all_of_it)[f"{group}.{key}"][0] == "1.0"


def test_the_span_micro_is_the_number_of_examples_it_comes_to(config):
    follows = run_spec(config(bn_span="micro", micro_batch=256))

    assert follows.run_id == run_spec(config(bn_span=256, micro_batch=256)).run_id
    assert follows.run_id != run_spec(config(bn_span="micro", micro_batch=128)).run_id


def test_the_identity_is_the_same_in_another_process(config):
    script = (
        "import json, sys; from sweeper.spec.identity import run_id;"
        "print(run_id(json.load(sys.stdin)))"
    )

    other = subprocess.run(
        [sys.executable, "-c", script],
        input=json.dumps(config()),
        text=True,
        capture_output=True,
        check=True,
        env={"PYTHONHASHSEED": "7"},
    )

    assert other.stdout.strip() == run_id(config())
