"""What a plan must know of a user's project is measured once, and fills the config."""

import sys
import textwrap
from pathlib import Path

import pytest
from PIL import Image

from sweeper.commands import user_facts
from sweeper.commands.checks import project
from sweeper.commands.checks.check import Severity
from sweeper.commands.checks.project import project_checks
from sweeper.commands.doctor import main
from sweeper.commands.overrides import add_own_classes
from sweeper.commands.user_facts import add_facts
from sweeper.console.planned_runs import (
    describe_guarantees,
    describe_rates,
    describe_rule,
    describe_settings,
    describe_validation,
)
from sweeper.launch.ask_process import _answer
from sweeper.planning.plan import plan
from sweeper.spec.run_spec import run_spec
from sweeper.spec.warnings import find_warnings
from sweeper.spec.worker_args import METRIC_NOT_LOGGED
from sweeper.store.ledger import Ledger
from sweeper.store.run_columns import planned_columns

WORDS = [
    "module=own", "module._target_=users.Module",
    "data=own", "data._target_=users.DataModule", "batch=32",
]  # fmt: skip
METRIC = ["metric=val/loss", "metric_mode=min", "base_batch=32"]
FOUND = {
    "same after a resume": {"holds": True, "message": "yes", "do": ""},
    "same on every layout": {"holds": False, "message": "no", "do": "Take means."},
    "seeds apply": {"holds": None, "message": "not determined", "do": ""},
}


@pytest.fixture
def fill(grid, tmp_path, monkeypatch):
    """The configs of a grid with the facts of a project; `fill.measured` counts the looks at it."""
    found = {
        "num_train_examples": 96, "has_batchnorm": False, "is_automatic": True, "found": FOUND,
    }  # fmt: skip
    measured = []

    def run(*words, **facts):
        def look(configs):
            measured.append(configs)
            return [{**found, **facts} for _ in configs]

        monkeypatch.setattr(user_facts, "_ask_for_facts", look)
        return list(add_facts(grid(*words), tmp_path))

    run.measured = measured
    monkeypatch.setattr(project, "find_error", lambda config: "")
    return run


def test_ours_on_data_that_state_their_examples_is_not_looked_at(fill, default_config):
    assert fill() == [default_config]
    assert fill.measured == []


def test_what_differs_between_layouts_makes_the_micro_batch_part_of_the_run(fill):
    """A contrastive loss trains otherwise on another layout; draws alone are no other run."""
    words = [*WORDS, *METRIC, "micro_batch=8,16"]
    differs = {"holds": False, "is_layouts": True}
    following, *others = (
        [
            run_spec(c)
            for c in fill(*words, f"+data.n={n}", found={**FOUND, "same on every layout": finding})
        ]
        for n, finding in enumerate([differs, {"holds": None}, {"holds": True}])
    )

    assert following[0].run_id != following[1].run_id
    assert [spec.words["loss_span"][0] for spec in following] == ["8", "16"]
    warnings = find_warnings(following, {})
    assert "8 at batch=32; 16 at batch=32. Set micro_batch" in warnings[following[0].run_id][-1]
    assert "Loss, batches or rates depend on the layout" in warnings[following[0].run_id][-1]
    assert all(first.run_id == other.run_id for first, other in others)


def test_ranks_are_part_of_a_run_whose_loss_is_no_mean(fill):
    """It may gather what they have, or move an average with each micro-batch of a rank."""
    words = [*WORDS, *METRIC, "micro_batch=8", "devices=1,2"]
    contrastive, additive = (
        [run_spec(config) for config in fill(*words, f"+data.n={n}", found=found)]
        for n, found in enumerate(
            {**FOUND, "same on every layout": {"holds": h, "is_layouts": not h}}
            for h in (False, True)
        )
    )

    assert contrastive[0].run_id != contrastive[1].run_id
    assert [spec.words["loss_span"][0] for spec in contrastive] == ["8", "2x8"]
    assert additive[0].run_id == additive[1].run_id


def test_an_installation_that_cannot_be_imported_is_said(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "lightning_modules.answer_process", None)
    output = tmp_path / "output.txt"

    with pytest.raises(ImportError):
        _answer(("facts", [], tmp_path / "answers.jsonl", output))

    assert "ModuleNotFoundError: import of lightning_modules.answer_process" in output.read_text()


def test_a_process_that_the_kernel_kills_is_told_by_its_signal(grid, tmp_path, monkeypatch):
    """A module may need more memory than there is as soon as it is made."""
    (tmp_path / "huge.py").write_text("import os\n\ndef make():\n    os.kill(os.getpid(), 9)\n")
    monkeypatch.syspath_prepend(tmp_path)
    words = [
        word.replace("users.Module", "huge.make").replace("users.DataModule", "huge.make")
        for word in WORDS
    ]

    with pytest.raises(ValueError, match=r"module and data must be created .*: killed by SIGKILL"):
        list(add_facts(grid(*words, *METRIC), tmp_path))


def test_a_project_is_looked_at_once_whatever_is_swept(fill):
    configs = [*fill(*WORDS, "seed=0,1", "warmup=0,5"), *fill(*WORDS, "epochs=3")]

    assert {config["data"]["num_train_examples"] for config in configs} == {96}
    assert len(fill.measured) == 1
    fill(*WORDS, "+data.size=3")
    assert len(fill.measured) == 2


def test_all_variants_of_a_project_are_looked_at_in_one_process(fill):
    configs = fill(*WORDS, "+data.size=3,4", "seed=0,1")

    (asked,) = fill.measured
    assert [config["data"]["size"] for config in asked] == [3, 4]
    assert len(configs) == 4


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"num_train_examples": 96}', "\0"])
def test_what_was_remembered_and_is_damaged_is_looked_at_again(fill, tmp_path, content):
    fill(*WORDS)
    (remembered,) = tmp_path.glob("facts/*")
    remembered.write_text(content)

    (config,) = fill(*WORDS)

    assert config["data"]["num_train_examples"] == 96
    assert len(fill.measured) == 2


def test_validation_batches_of_a_size_of_ours_are_said(fill):
    own, ours = (
        run_spec(fill(*WORDS, *METRIC, f"+data.n={n}", **facts)[0])
        for n, facts in enumerate([{}, {"val_batch": 64}])
    )

    assert describe_validation(own) == ""
    assert describe_validation(ours).startswith("Validation takes 64 examples at once, at every")
    assert describe_validation(ours).endswith("DataModule says no number of its own.")


def test_a_stated_number_of_examples_stays(fill):
    (config,) = fill(*WORDS, "+data.num_train_examples=64")

    assert config["data"]["num_train_examples"] == 64


@pytest.mark.parametrize(
    ("words", "facts", "span"),
    [
        ([], {"has_batchnorm": True}, 32),
        (["bn_span=micro"], {"has_batchnorm": True}, "micro"),
        ([], {"has_batchnorm": True, "refused": {"bn_span": "it has no momentum"}}, "micro"),
        ([], {"has_batchnorm": False}, None),
        (["bn_span=micro"], {"has_batchnorm": False}, None),
        (["bn_span=128"], {"has_batchnorm": False}, None),
    ],
)
def test_batchnorm_of_a_module_has_a_span_of_its_own_if_it_can(fill, words, facts, span):
    assert fill(*WORDS, *words, **facts)[0]["bn_span"] == span


def test_a_grid_that_the_usual_span_does_not_fit_is_refused_with_one_that_does(fill, tmp_path):
    configs = fill(*WORDS, *METRIC, "batch=24,40", has_batchnorm=True)

    with pytest.raises(ValueError, match=r"got batch=24, 40\. bn_span=8 fits every point"):
        plan(configs, Ledger(tmp_path))


@pytest.mark.parametrize(
    ("where", "taken", "refused"),
    [
        ("always", None, []),
        ("bn_span", ["bn_span=null"], ["bn_span=8"]),
        ("ranks", ["devices=1"], ["devices=2"]),
    ],
)
def test_what_its_trial_refused_is_refused_in_the_plan(fill, where, taken, refused):
    facts = {"refused": {where: "it must be otherwise"}, "has_batchnorm": True}
    if taken:
        assert len(fill(*WORDS, *taken, **facts)) == 1

    with pytest.raises(ValueError, match=r"^it must be otherwise$"):
        fill(*WORDS, *refused, **facts)


@pytest.mark.parametrize(
    ("has", "words", "held"),
    [
        (False, [], ["fixed batchnorm", "same after a resume"]),
        (True, ["bn_span=micro"], ["same after a resume"]),
        (True, [], ["fixed batchnorm", "same after a resume"]),
    ],
)
def test_what_was_found_to_hold_is_in_the_row_and_the_plan_and_nothing_else(fill, has, words, held):
    (config,) = fill(*WORDS, *METRIC, *words, has_batchnorm=has)
    spec = run_spec(config)

    assert config["guarantees"] == held
    assert planned_columns(spec)["guarantees"] == ", ".join(held)
    confirmed = f"Confirmed for Module: {', '.join(held)}; not confirmed: "
    assert describe_guarantees(spec).startswith(confirmed)
    assert "peak lr is a factor on the rates that the optimizers and sched" in describe_rates(spec)
    assert "it is 1 at base_batch=32." in describe_rates(spec)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["lr_rule=none"], "none, so Module's own learning rates hold at every batch"),
        (
            ["optimizer=sgd", "base_lr=1", "lr_rule=linear"],
            "linear, by which the rates of base_lr scale from base_batch=32",
        ),
    ],
)
def test_the_rule_and_the_length_in_force_are_said(fill, words, said):
    specs = [run_spec(config) for config in fill(*WORDS, *METRIC, *words, has_batchnorm=False)]

    assert describe_rule(specs).startswith(f"Rule: {said} (lr_rule=")
    assert describe_rule(specs).endswith(f"). Length: {specs[0].config.epochs} epochs.")


GROUPS = [{"betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.1}, {"betas": [0.8, 0.99]}]
WRITTEN = [{**GROUPS[0], "betas": None}]  # by OneCycle
RULE = ["lr_rule=half_life", "base_batch=16"]


def plan_settings(fill, *words, groups=GROUPS):
    same = {"holds": True, "settings": groups}
    (config,) = fill(*WORDS, *METRIC, *words, found={**FOUND, "same on every layout": same})
    return run_spec(config)


def test_the_settings_of_the_modules_own_groups_are_planned(fill):
    """Twice the batch: the first group's second beta is squared."""
    spec = plan_settings(fill, *RULE)

    columns = planned_columns(spec)
    assert (columns["beta1"], columns["beta2"]) == pytest.approx((0.9, 0.999**2))
    assert describe_settings(spec) == (
        "batch 32: beta1 0.9, beta2 0.998001, eps 1e-08, weight_decay 0.1 (base_batch=16)."
    )


@pytest.mark.parametrize(
    ("words", "groups", "said"),
    [
        (RULE, WRITTEN, "the run's rules set betas, so all groups .* OneCycleLR .* got Module"),
        (RULE, [{"momentum": 0.9}], "the run's rules set betas, so all groups of an optimizer"),
        (["lr_rule=adam_sde", "base_batch=2"], GROUPS, r"below 1; got beta=0\.9, batch=32, base"),
        (["wd_rule=timescale"], GROUPS, "set weight_decay, so all groups .* got Module"),
    ],
)
def test_a_rule_that_does_not_fit_the_modules_optimizers_is_refused(fill, words, groups, said):
    with pytest.raises(ValueError, match=said):
        plan_settings(fill, *words, groups=groups)


def test_settings_that_no_rule_sets_may_change(fill):
    assert plan_settings(fill, "lr_rule=linear", groups=WRITTEN).mappings == {}


def test_settings_that_are_not_found_out_are_told_by_the_run(fill):
    (config,) = fill(*WORDS, *METRIC, *RULE)

    assert describe_settings(run_spec(config)) == (
        "batch 32: betas known when it starts (base_batch=16)."
    )


def test_of_our_module_nothing_is_to_be_found_out(fill):
    spec = run_spec(fill()[0])

    assert planned_columns(spec)["guarantees"] is None
    assert describe_guarantees(spec) == ""


def test_nothing_found_to_hold_is_not_nothing_looked_at(fill):
    (config,) = fill(*WORDS, *METRIC, "bn_span=micro", has_batchnorm=True, found={})

    assert planned_columns(run_spec(config))["guarantees"] == ""


@pytest.fixture
def examine(fill, grid, tmp_path, monkeypatch):
    """The doctor's checks of a project, whose first steps may fail."""

    def run(*words, why="", **options):
        fill(*WORDS)
        monkeypatch.setattr(project, "find_error", lambda config: why)
        (config,) = grid(*words, f"results={tmp_path}")
        return list(project_checks(config, **options))

    return run


def test_the_doctor_says_each_thing_and_looks_again_each_time(examine, fill):
    examine(*WORDS)

    checks = examine(*WORDS)

    assert [(check.severity, check.what, check.found, check.do) for check in checks] == [
        (Severity.GOOD, "data", "96 training examples", ""),
        (
            Severity.GOOD,
            "first steps",
            "a few steps and an evaluation after them raise nothing",
            "",
        ),
        (Severity.GOOD, "same after a resume", "yes", ""),
        (Severity.WARNING, "same on every layout", "no", "Take means."),
        (Severity.WARNING, "seeds apply", "not determined", ""),
        (Severity.GOOD, "fixed batchnorm", "the model has no BatchNorm", ""),
    ]
    assert len(fill.measured) == 3


BATCH_BROKEN = "lightning_modules.callbacks.batch_contract.BatchContractBroken"


@pytest.mark.parametrize(
    ("words", "why", "severity", "what", "is_ours"),
    [
        (METRIC, "RuntimeError: no, in my.py, line 3", Severity.BROKEN, "first steps", False),
        (
            METRIC,
            "ValueError: not a float, in my.py, line 3",
            Severity.BROKEN,
            "first steps",
            False,
        ),
        (METRIC, f"ValueError: {METRIC_NOT_LOGGED}; got", Severity.BROKEN, "metric", False),
        ([], f"ValueError: {METRIC_NOT_LOGGED}; got", Severity.WARNING, "metric", False),
        (METRIC, "ValueError: batch must be one. Give one", Severity.BROKEN, "first steps", True),
        (METRIC, f"{BATCH_BROKEN}: no step", Severity.BROKEN, "first steps", True),
    ],
)
def test_the_doctor_says_what_fails_the_first_steps_and_whose_error_it_is(
    examine, words, why, severity, what, is_ours
):
    _, check, *_ = examine(*WORDS, *words, why=why)

    assert (check.severity, check.what) == (severity, what)
    assert check.found.endswith(why.partition(": ")[2])
    assert check.found.startswith("sweeper cannot train it, because ") == is_ours
    assert (check.do == "") == is_ours


def test_a_seed_that_a_module_is_given_as_a_number_holds_for_that_seed(fill):
    found = {"seeds apply": {"holds": True, "message": "it is", "do": "", "seed": 1}}

    configs = fill(*WORDS, *METRIC, "seed=1,2", found=found)

    assert ["seeds apply" in config["guarantees"] for config in configs] == [True, False]


def test_the_doctor_says_what_a_sweep_would_refuse(examine):
    _, check, *_ = examine(*WORDS, "warmup=5", "epochs=4")

    assert (check.severity, check.what) == (Severity.BROKEN, "config")
    assert check.found.startswith("warmup must be shorter than the training; got warmup=5")


def test_the_doctor_takes_a_batch_that_few_data_have(examine):
    words = [*WORDS[:4], *METRIC, "warmup=0", "epochs=4"]

    _, batch, steps, *_ = examine(*words, has_batch=False)

    assert batch.found == "64 is checked, as the default is more than the data"
    assert steps.severity == Severity.GOOD


def test_the_doctor_tries_the_first_steps_in_a_process(monkeypatch, capsys, tmp_path):
    """As a user types it, with data of ours beside a module of their own."""
    monkeypatch.setenv("PYTHONPATH", f"{Path(__file__).parents[2]}")
    words = ["module._target_=users.DigitsModule", "+module.width=100", "data=digits"]

    assert main([*words, "metric=val/ce", "metric_mode=min", f"results={tmp_path}"]) == 1

    said = capsys.readouterr().out
    assert "RuntimeError: mat1 and mat2 shapes cannot be multiplied" in said


def test_the_doctor_tells_what_cannot_be_made_and_refuses_our_module(grid, tmp_path, monkeypatch):
    def look(configs):
        msg = f"module and data must be made; got {len(configs)}"
        raise ValueError(msg)

    monkeypatch.setattr(user_facts, "_ask_for_facts", look)
    (config,) = grid(*WORDS, f"results={tmp_path}")
    (check,) = project_checks(config)

    assert check.severity is Severity.BROKEN
    assert check.found == "module and data must be made; got 1"
    with pytest.raises(ValueError, match="doctor must be given a module or a model of your own"):
        list(project_checks(grid()[0]))


def test_a_module_that_steps_by_hand_does_so_at_the_batch(fill):
    (config,) = fill(*WORDS, "devices=2", is_automatic=False)

    assert config["micro_batch"] == 16


@pytest.mark.parametrize(("most", "words"), [(1, "1 with"), (2, "2 or less with")])
def test_data_that_can_only_be_iterated_are_for_as_many_ranks_as_they_have_parts(fill, most, words):
    (config,) = fill(*WORDS, f"devices={most}", is_iterable=True, most_ranks=most)

    assert config["data_order"] == "counted"
    said = next(iter(project_checks(config))).found
    assert said.endswith(f"in their own order, on at most {most} rank{'s' * (most > 1)}")
    with pytest.raises(ValueError, match=rf"devices x num_nodes must be {words} .* got 4 ranks"):
        fill(*WORDS, "devices=4", is_iterable=True, most_ranks=most)


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("micro_batch=8", "micro_batch x ranks must equal batch .* micro_batch=8"),
        ("devices=3", "micro_batch x ranks must equal batch .* 3 ranks"),
        ("perturbation=sam", "perturbation cannot be used with automatic_optimization=False"),
        ("reproducible=true", "reproducible cannot be used"),
        ("loss_items=y", "loss_items cannot be used"),
        ("gradient_clip=1", "gradient_clip cannot be used"),
        ("optimizer=vr_sgd", "optimizer.gradient_span cannot be used"),
        ("lr_rule=adascale", "lr_rule=adascale cannot be used"),
    ],
)
def test_what_would_need_lightning_to_step_is_refused(fill, word, sentence):
    with pytest.raises(ValueError, match=sentence):
        fill(*WORDS, word, is_automatic=False)


def test_of_several_that_which_cannot_be_made_is_named(grid, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "two.py").write_text(
        "class Data:\n num_train_examples, input_shape, num_classes, set_epoch = 96, (1,), 2, id\n"
        " def __init__(self, size=1): 1 / (size - 2)\n"
    )
    words = ["data=own", "data._target_=two.Data", "batch=32", "base_batch=32"]
    with pytest.raises(
        ValueError, match=r"=two\.Data: ZeroDivisionError: division by zero, in .*two\.py, line 3$"
    ):
        list(add_facts(grid(*words, "+data.size=1,2"), tmp_path))


def test_a_class_on_the_command_line_gets_no_settings_of_the_default():
    words = ["batch=1", "data._target_=a.B", "+data.root=x", "model._target_=c.D", "model=gpt"]

    assert add_own_classes(words) == ["batch=1", "data=own", *words[1:]]


@pytest.mark.parametrize("weights", ["{0:1.0,1:2.0}", "{a:1.0,1:2.0}"])
def test_names_that_no_file_would_keep_are_refused(fill, weights):
    """In JSON, and so in the run, 1 would have become '1'."""
    with pytest.raises(ValueError, match=r"^module.weights must have names as keys; got [01]\."):
        fill(*WORDS, f"+module.weights={weights}")


@pytest.fixture
def of_images(tmp_path):
    """The words for two images on disk, and a network of the user's for them."""
    for split in ("train", "val"):
        for kind in ("cat", "dog"):
            (tmp_path / split / kind).mkdir(parents=True)
            Image.new("RGB", (8, 8)).save(tmp_path / split / kind / "a.jpg")
    words = ["data=images", "data.name=pets", f"data.root={tmp_path}", "batch=2", "bn_span=1"]
    return [*words, "model=own", "model._target_=provoked.Plain"]


def test_the_doctor_counts_images_as_a_plan_does(grid, of_images, monkeypatch):
    (config,) = grid(*of_images)

    def look(configs, _):
        raise ValueError(configs[0]["data"]["num_train_examples"])

    monkeypatch.setattr(project, "find_facts", look)

    assert [check.found for check in project_checks(config)] == ["2"]


def test_a_network_is_tried_on_images_that_are_here(fill, of_images):
    counts = ["data.num_classes=2", "data.num_train_examples=2", "data.num_val_examples=2"]
    counts += ["data.size=32", "data.resize=32"]
    elsewhere = [*of_images, *counts, "data.root=elsewhere"]
    elsewhere.remove(of_images[2])

    fill(*elsewhere)
    fill(*of_images, *counts)

    assert [len(configs) for configs in fill.measured] == [1]


@pytest.mark.parametrize(
    ("settings", "refusal"),
    [
        (
            [],
            "the first training step must not fail; .*3 channels, but got 1 .*shape \\(1, 8, 8\\)",
        ),
        (["+model.channels=1", "+model.side=8", "+model.outputs=3"], "got 3 outputs, 10 classes"),
    ],
)
def test_a_plan_refuses_a_network_whose_first_step_fails(
    grid, tmp_path, monkeypatch, settings, refusal
):
    network = """
        from torch import nn
        class Net(nn.Sequential):
            def __init__(self, channels=3, side=32, outputs=10):
                flat = nn.Linear(channels * side * side, outputs)
                super().__init__(nn.Conv2d(channels, channels, 1), nn.Flatten(), flat)
    """
    (tmp_path / "first_step_net.py").write_text(textwrap.dedent(network))
    monkeypatch.syspath_prepend(tmp_path)
    words = ["model._target_=first_step_net.Net", "batch=32", "warmup=0", *settings]

    with pytest.raises(ValueError, match=refusal):
        list(add_facts(grid(*add_own_classes(words)), tmp_path))


def test_what_was_counted_of_a_batch_in_tokens_is_in_the_config(fill):
    words = [*WORDS, *METRIC, "batch_unit=tokens", "micro_batch=32", "loss_items=labels"]
    (config,) = fill(*words, epoch_tokens=900, longest_example=20)

    assert (config["epoch_tokens"], config["longest_example"]) == (900, 20)
    assert config["data"]["num_train_examples"] == 96
    assert run_spec({**config, "warmup": 0}).steps_per_epoch == 28
    with pytest.raises(ValueError, match="needs a data set with a length and indices"):
        fill(*words[:-1], "loss_items=mask", is_iterable=True)
