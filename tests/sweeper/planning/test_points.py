"""The points of a grid are the runs that they are alone."""

import json
from pathlib import Path

import pytest

from sweeper import CONFIG_FOLDER
from sweeper.commands.show_plan import configs_of
from sweeper.planning import plan as planning
from sweeper.planning.plan import plan
from sweeper.spec import identity
from sweeper.spec.run_spec import run_spec
from sweeper.store.row import planned_row

FOLDERS = sorted(Path(CONFIG_FOLDER).glob("[er]*/*.yaml"))  # experiments and recipes
OPTIONS = [
    f"{path.parent.name}={path.stem}"
    for path in sorted(Path(CONFIG_FOLDER).glob("*/*.yaml"))
    if path.parent.name not in {"cluster", "experiment", "recipe"}
]
OF_OWN_MODULE = (
    "module._target_=a.Module",
    "data._target_=a.Data",
    "+data.num_train_examples=7680",
)
#: What an option needs beside it.
ALSO = {
    "comm_hook=hierarchical": ("comm_hook.ranks_per_node=2", "devices=2", "num_nodes=3"),
    "comm_hook=post_local_sgd": ("comm_hook.workers=2", "comm_hook.start_epoch=5", "devices=2"),
    "data=images": (
        "data.name=photos",
        "data.root=/nowhere",
        "data.num_classes=10",
        "data.num_train_examples=7680",
        "data.num_val_examples=100",
    ),
    "data=own": OF_OWN_MODULE,
    "data=text": ("data.name=letters", "data.root=/nowhere", "+data.num_train_examples=7680"),
    "lr_rule=legw": ("warmup=1",),
    "lr_rule=linear_capped": ("lr_rule.max_lr=1",),
    "lr_rule=saturating": ("lr_rule.noise_scale=512",),
    "lr_rule=surge": ("lr_rule.noise_scale=512",),
    "model=own": ("model._target_=a.model",),
    "model=timm": ("model.name=resnet18",),
    "model=torchvision": ("model.name=resnet18",),
    "module=own": OF_OWN_MODULE,
    "optimizer=module": OF_OWN_MODULE,
    "schedule=growing_batch": ("schedule.max_batch=61440",),
}
LONG = ("epochs=90",)
WORDS = [
    *((option, *ALSO.get(option, ())) for option in OPTIONS),
    *((f"+{path.parent.name}={path.stem}", *LONG) for path in FOLDERS),
    ("bn_span=micro", "devices=2", "micro_batch=384"),
    ("bn_span=null", "micro_batch=384", "noise_span=384", "ema_decay=0.9"),
    ("data.about=${model._target_}", "data.validation_fold=${seed}", "tags=a"),
    ("schedule.milestones=[5,10.5]", "warmup=2.5", "base_lr=1e-1", "optimizer.nesterov=true"),
]


def as_it_is_alone(config):
    """Of a run: all that its identity and its row consist of, worked out by itself."""
    spec = run_spec(config)
    known = (
        identity.run_id(spec.identified),
        spec.lr_equivalence_id,
        identity.words(spec.identified),
    )
    return known, planned_row(spec), [spec.schedule.lr(step) for step in (0, 7, 90)]


def as_planned(spec):
    known = (spec.run_id, spec.lr_equivalence_id, spec.words)
    return known, planned_row(spec), [spec.schedule.lr(step) for step in (0, 7, 90)]


@pytest.mark.parametrize(
    "words",
    [pytest.param(words, marks=pytest.mark.slow) for words in WORDS[:-4]] + WORDS[-4:],
    ids=" ".join,
)
def test_points_that_share_numbers_are_the_runs_they_are_alone(words, ledger, monkeypatch):
    monkeypatch.setattr(planning, "check_names", list)  # some are not there
    configs = configs_of([*words, "seed=3,0,5", "loss_ceiling=null,50,60.5"], config_dir=None)

    specs = {spec.run_id: spec for spec in plan(configs, ledger).specs}

    for config in configs:
        alone = as_it_is_alone(config)
        planned = as_planned(specs[alone[0][0]])
        assert json.dumps(planned) == json.dumps(alone)


BASE = ("batch=3840", "base_batch=3840", "schedule=constant", "epochs=2", "warmup=0")


@pytest.mark.parametrize(
    ("words", "number"),
    [
        ((*BASE, "lr_rule=none,linear,sqrt,power"), 1),
        ((*BASE, "base_batch=256", "warmup=0,0.5,1", "lr_rule=none"), 1),
        ((*BASE, "base_batch=256", "warmup=0.5,1", "warmup_start=zero", "lr_rule=none"), 2),
        ((*BASE, "base_batch=256", "warmup=0", "warmup_start=zero,base,constant"), 1),
        ((*BASE, "base_batch=256", "warmup=1", "warmup_start=zero,base,constant"), 3),
        ((*BASE, "base_batch=256", "lr_rule=none,linear"), 2),
        ((*BASE, "lr_rule=none,linear", "seed=0,1"), 2),
        ((*BASE, "lr_rule=none,linear", "schedule=constant,cosine"), 2),
        ((*BASE, "schedule=cosine", "warmup=0,1", "schedule.clock=start"), 1),
        ((*BASE, "schedule=cosine", "warmup=0,1", "schedule.clock=warmup"), 2),
        ((*BASE, "lr_rule=none", "base_lr=0.1,0.2"), 2),
        ((*BASE, "base_batch=1920,3840", "base_lr=0.1", "lr_rule=none"), 1),
    ],
)
def test_points_with_the_same_rate_at_each_step_share_an_id(grid, ledger, words, number):
    specs = plan(grid(*words), ledger).specs

    assert len(specs) == len(grid(*words))
    assert len({spec.lr_equivalence_id for spec in specs}) == number
    rates = {tuple(map(spec.schedule.lr, range(spec.total_steps))) for spec in specs}
    assert len(rates) <= number


def test_points_of_the_same_training_are_named(grid, ledger):
    found = plan(grid(*BASE, "lr_rule=none,linear", "seed=0,1"), ledger)

    assert found.distinct_warnings == [
        "2 runs have the same learning rate at each step as another, and so the same result: "
        "lr_rule=linear as lr_rule=none at batch=3840."
    ]


@pytest.mark.parametrize(
    "wrong", ["batch=7680.5", "base_lr=-1", f"base_lr={10**20}", "precision=8", "metric=[1]"]
)
def test_what_is_wrong_is_refused_beside_points_as_it_is_alone(ledger, grid, wrong):
    with pytest.raises(ValueError, match=f"^{wrong.partition('=')[0]}") as alone:
        plan(grid(wrong), ledger)

    with pytest.raises(ValueError, match=f"^{wrong.partition('=')[0]}") as beside:
        plan([*grid("seed=1,2"), *grid(wrong)], ledger)

    assert str(beside.value) == str(alone.value)


@pytest.mark.parametrize("seed", ["-1", "true", "1.0", "null", "9223372036854775808"])
def test_what_is_no_seed_is_refused_beside_others(ledger, grid, seed):
    with pytest.raises(ValueError, match=r"^seed must be a whole number, 0 or more"):
        plan(grid(f"seed=1,{seed}"), ledger)


def test_numbers_of_another_type_are_read_by_themselves(ledger, grid):
    (config,) = grid("warmup=5")

    planned = plan([config, {**config, "warmup": 5.0}, config], ledger)

    assert (len(planned.specs), planned.repeats) == (1, 2)
    with pytest.raises(ValueError, match=r"^batch must be a whole number"):
        plan([config, {**config, "batch": 3840.0}], ledger)


def test_a_grid_over_models_that_a_module_does_not_read_is_refused(ledger, grid):
    words = ("module=own", "module._target_=json.JSONDecoder", "metric=val/loss")

    with pytest.raises(ValueError, match=r"^model can be swept with module=classifier only"):
        plan(grid(*words, "metric_mode=min", "model=resnet8,resnet20"), ledger)


def test_a_grid_over_folders_of_data_is_refused(ledger, grid):
    words = ("data=images", "data.name=cats", "data.num_classes=2", "data.num_train_examples=3840")

    with pytest.raises(ValueError, match=r"^data.root must be one folder .*; got /a and /b\. "):
        plan(grid(*words, "data.root=/a,/b"), ledger)
