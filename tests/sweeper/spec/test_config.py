"""The typed config: what it refuses, in which words, and that nothing is lost on the way."""

import json

import pytest
from pydantic import BaseModel

from sweeper.spec import config, lr_rules, schedules
from sweeper.spec.config import RunConfig, run_config
from sweeper.spec.identity import words
from sweeper.spec.sentences import union_models

#: Settings that no file of conf/ has for every choice, written with a `+`; None without it.
OPTIONAL = {
    "about",
    "base_lr",
    "choice",
    "data_order",  # as the next: filled in as it is found out
    "guarantees",
    "loss_span",
    "epoch_tokens",
    "longest_example",
    "gradient_span",
    "measured_at",
    "measured_in",
    "margin",
    "model",
    "rate_exponent",
    "order",  # as the next: rows of before it was a key are read
    "trial",
    "warmup_exponent",
}


MODELS = [
    *(RunConfig, config.Component, config.Data, config.Logger, config.Optimizer),
    *union_models(lr_rules.LRRule).values(),
    *union_models(schedules.Schedule).values(),
    *union_models(config.CommHook).values(),
    *union_models(config.Perturbation).values(),
]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_defaults_live_in_conf_only(model: type[BaseModel], default_config):
    """A key that conf/ has as null or false may be absent, which is the same; so may a name."""
    fields = [(key, f) for key, f in model.model_fields.items() if key != "name"]
    defaults = {name: field.default for name, field in fields if not field.is_required()}
    off = {name for name, value in default_config.items() if value in (None, False)}

    assert defaults.keys() <= OPTIONAL | off
    assert not any(defaults.values())


def test_what_was_read_is_given_back_in_every_detail(default_config):
    once = run_config(default_config)
    text = json.dumps(once.resolved, sort_keys=True)

    kept = {key: value for key, value in default_config.items() if key != "tokens"}
    assert text == json.dumps(kept, sort_keys=True)
    assert run_config(json.loads(text)) == once


def test_a_component_has_a_name_and_the_arguments_of_its_constructor(grid):
    (resolved,) = grid("data=cifar10", "model=small_cnn", "optimizer=vr_sgd", "batch=2500")

    read = run_config(resolved)

    assert (read.data.name, read.model.name, read.optimizer.name) == (
        "CIFAR10",
        "SmallCNN",
        "vr_sgd",
    )
    assert read.data.settings["name"] == "CIFAR10"
    assert read.model.settings == {"channels": [16, 32], "hidden": 64}
    assert set(read.optimizer.settings) == {"momentum", "weight_decay", "floor", "gradient_span"}


def test_optimizers_of_the_users_own_check_their_own_settings(config):
    mine = {"name": "mine", "_target_": "mine.Optimizer", "momentum": [0.5, 1.5], "betas": 3}

    assert run_config(config(optimizer=mine)).optimizer.name == "mine"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"data": None}, "data must be a group; got data=null."),
        (
            {"optimizer": {"name": "x"}},
            "optimizer._target_ must be given. Write optimizer._target_=VALUE.",
        ),
        (
            {"module": {"class_path": "my.Net", "init_args": {"width": 8}}},
            "module._target_ must be given. Rename LightningCLI's class_path: my.Net to _target_: "
            "my.Net, and move its init_args next to it, at every level.",
        ),
        (
            {"schedule": "cosine"},
            "schedule must be one of adaptive_batch, batch_by_rate, batch_warmup, constant, "
            "cosine, growing_batch, periodic_decay, polynomial, seesaw, wsd; got "
            "schedule='cosine'. Name a function of your own with schedule._target_.",
        ),
    ],
    ids=str,
)
def test_a_stored_or_written_config_is_refused_in_a_sentence(config, changes, sentence):
    """What no words on a command line would make; their refusals stand in refused_words.txt."""
    with pytest.raises(ValueError) as refused:  # noqa: PT011  the whole text is compared
        run_config(config(**changes))

    assert str(refused.value) == sentence


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("my.nets.Net", "Net"),
        ("forecasting.TimeSeriesDataSet.from_dataset", "TimeSeriesDataSet.from_dataset"),
        ("chemprop_project.data", "chemprop_project.data"),
        ("make", "make"),
        ("lightning_modules.models.library.timm_model", "timm_model"),
    ],
)
def test_a_function_is_named_with_its_place(target, name):
    """Functions of several projects are called `data`, `model` or `from_dataset`."""
    component = {"_target_": target}

    assert config.Component(**component).name == name
    assert words({"data": component})["data"][0] == name
