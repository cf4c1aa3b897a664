"""The typed config: what it refuses, in which words, and that nothing is lost on the way."""

import json

import pytest
from pydantic import BaseModel

from sweeper.spec import config, lr_rules, schedules
from sweeper.spec.config import RunConfig, run_config
from sweeper.spec.sentences import models_of

#: Settings that no file of conf/ has for every choice, written with a `+`; None without it.
OPTIONAL = {
    "about",
    "base_lr",
    "choice",
    "data_order",  # as the next: filled in as it is found out
    "guarantees",
    "loss_span",
    "gradient_span",
    "measured_in",
    "model",
    "order",  # rows of before it was a key are read
    "warmup_exponent",
}


MODELS = [
    *(RunConfig, config.Component, config.Data, config.Logger, config.Optimizer),
    *models_of(lr_rules.LRRule).values(),
    *models_of(schedules.Schedule).values(),
    *models_of(config.CommHook).values(),
    *models_of(config.Perturbation).values(),
]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_defaults_live_in_conf_only(model: type[BaseModel], default_config):
    """A key that conf/ has as null or false may be absent, which is the same."""
    fields = model.model_fields.items()
    defaults = {name: field.default for name, field in fields if not field.is_required()}
    off = {name for name, value in default_config.items() if value in (None, False)}

    assert defaults.keys() <= OPTIONAL | off
    assert not any(defaults.values())


def test_what_was_read_is_given_back_in_every_detail(default_config):
    text = json.dumps(run_config(default_config).resolved, sort_keys=True)

    assert text == json.dumps(default_config, sort_keys=True)


def test_a_config_is_read_again_from_its_own_text(default_config):
    once = run_config(default_config)

    assert run_config(json.loads(json.dumps(once.resolved))) == once


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


HUGE = 2**63


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"seed": HUGE},
            f"seed must be a whole number, 0 or more, and at most {HUGE - 1}, the largest that a "
            f"table holds; got seed={HUGE}.",
        ),
        ({"seed": True}, "seed must be a whole number, 0 or more; got seed=true."),
        ({"twin_of": 1}, "twin_of must be a string, or null; got twin_of=1."),
        ({"hardware": 5}, "hardware must be a group, or null; got hardware=5."),
        ({"results": None}, "results must be a string; got results=null."),
        ({"threads": 0}, "threads must be a whole number from 1 to 1024; got threads=0."),
        ({"threads": 9999}, "threads must be a whole number from 1 to 1024; got threads=9999."),
        ({"base_lr": float("inf")}, "base_lr must be a number above 0, or null; got base_lr=inf."),
        (
            {"bn_span": "macro"},
            "bn_span must be a whole number, 1 or more, or micro, or null; got bn_span='macro'. "
            "Did you mean bn_span=micro?",
        ),
        ({"retry": "all"}, "retry must be failed, or null; got retry='all'."),
        (
            {"accelerator": "gpus"},
            "accelerator must be one of auto, cpu, gpu; got accelerator='gpus'. Did you mean "
            "accelerator=gpu?",
        ),
        ({"data": None}, "data must be a group; got data=null."),
        ({"optimizer": {"name": "x"}}, "optimizer._target_ must be given. Write "
            "optimizer._target_=VALUE."),
        (
            {"module": {"class_path": "my.Net", "init_args": {"width": 8}}},
            "module._target_ must be given. Rename LightningCLI's class_path: my.Net to _target_: "
            "my.Net, and move its init_args next to it, at every level.",
        ),
        (
            {"comm_hook": {"name": "powersgd", "rnk": 2, "rank": 2, "start_step": 2}},
            "comm_hook.rnk must be a setting of comm_hook=powersgd; got comm_hook.rnk=2. Did you "
            "mean comm_hook.rank?",
        ),
        (
            {"comm_hook": {"name": "bf16", "precise": True}},
            "comm_hook.precise must be a setting of comm_hook=bf16; got comm_hook.precise=true. "
            "It has no settings.",
        ),
        (
            {"lr_rules": "linear"},
            "lr_rules must be a config key; got lr_rules='linear'. Did you mean lr_rule?",
        ),
        ({"schedule": "cosine"}, "schedule must be one of constant, cosine, growing_batch, "
            "periodic_decay, polynomial; got schedule='cosine'. Name a function of your own with "
            "schedule._target_."),
    ],
    ids=str,
)  # fmt: skip
def test_a_wrong_value_gets_a_sentence(default_config, changes, sentence):
    with pytest.raises(ValueError) as refused:  # noqa: PT011  the whole text is compared
        run_config({**default_config, **changes})

    assert str(refused.value) == sentence


def test_a_key_that_is_missing_is_named(default_config):
    without = {key: value for key, value in default_config.items() if key != "precision"}

    with pytest.raises(ValueError, match=r"^precision must be given. Write precision=VALUE\.$"):
        run_config(without)


def test_each_mistake_has_a_line_of_its_own(default_config):
    with pytest.raises(ValueError) as refused:  # noqa: PT011  the whole text is compared
        run_config({**default_config, "seed": -1, "batch": 0.5, "precision": 32})

    assert str(refused.value).splitlines() == [
        "batch must be a whole number, 1 or more; got batch=0.5.",
        "seed must be a whole number, 0 or more; got seed=-1.",
        "precision must be one of 16-mixed, 32-true, 64-true, bf16-mixed; got precision=32. "
        "Did you mean precision=32-true?",
    ]
