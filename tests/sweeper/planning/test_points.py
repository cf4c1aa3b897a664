"""The points of a grid become runs: which are one training, and which start first."""

from pathlib import Path

import pytest

from sweeper import CONFIG_FOLDER
from sweeper.commands.show_plan import configs_of
from sweeper.planning import plan as planning
from sweeper.planning.plan import Task, order_by_information, plan
from sweeper.spec.run_spec import run_spec

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
        "data.name=photos", "data.root=/nowhere", "data.num_classes=10",
        "data.num_train_examples=7680", "data.num_val_examples=100", "data.size=32",
        "data.resize=32",
    ),
    "data=own": OF_OWN_MODULE,
    "data=python_source": ("data.num_train_examples=7680",),
    "data=text": ("data.name=letters", "data.root=/nowhere", "+data.num_train_examples=7680"),
    "lr_rule=adam_sde": ("optimizer=adamw", "base_batch=512"),
    "lr_rule=half_life": ("optimizer=adamw",),
    "lr_rule=legw": ("warmup=1",),
    "lr_rule=linear_capped": ("lr_rule.max_lr=1",),
    "lr_rule=saturating": ("lr_rule.noise_scale=512",),
    "lr_rule=surge": ("lr_rule.noise_scale=512",),
    "model=gpt": ("data.num_train_examples=7680",),
    "model=lstm": ("data.num_train_examples=7680",),
    "model=own": ("model._target_=torch.nn.Flatten",),
    "model=timm": ("model.name=resnet18",),
    "model=torchvision": ("model.name=resnet18",),
    "module=language_model": ("data.num_train_examples=7680",),
    "module=model": ("model._target_=a.Module", *OF_OWN_MODULE[1:]),
    "module=own": OF_OWN_MODULE,
    "optimizer=module": OF_OWN_MODULE,
    "schedule=adaptive_batch": (
        "schedule.smoothness=1", "schedule.largest_smoothness=2", "schedule.strong_convexity=0.1",
        "schedule.squared_distance=0.1", "schedule.max_batch=15360",
    ),
    "schedule=batch_by_rate": ("schedule.mean_batch=7680", "schedule.max_batch=15360"),
    "schedule=batch_warmup": ("schedule.positions=[1]", "schedule.critical_batch=[512]"),
    "schedule=growing_batch": ("schedule.max_batch=61440",),
    "schedule=seesaw": ("epochs=32",),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_of_conf_is_planned(option, ledger, monkeypatch):
    monkeypatch.setattr(planning, "check_names", list)  # some are not there

    assert plan(configs_of([option, *ALSO.get(option, ())], config_dir=None), ledger).specs


BASE = ("batch=3840", "base_batch=3840", "schedule=constant", "epochs=2", "warmup=0")


DECAYED = ("optimizer=adamw", "base_lr=0.001", "lr_rule=none")


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
        ((*BASE, *DECAYED, "wd_rule=none,timescale", "base_batch=256"), 2),
        ((*BASE, *DECAYED, "wd_rule=none,timescale"), 1),
        ((*BASE, "ema_decay=0.9", "ema_rule=none,scaled", "base_batch=3840,256"), 3),
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


def test_one_seed_comes_first_and_of_it_the_corners(config):
    tasks = [
        Task(spec=run_spec(config(seed=seed, warmup=warmup, batch=batch)), number=1)
        for seed in (0, 1)
        for warmup in (0, 5, 10)
        for batch in (3840, 7680, 15360, 30720)
    ]

    ordered = [task.spec.config for task in order_by_information(tasks)]

    assert [config.seed for config in ordered] == [0] * 12 + [1] * 12
    assert [(c.warmup, c.batch) for c in ordered[:4]] == [
        (0, 3840), (0, 30720), (10, 3840), (10, 30720),
    ]  # fmt: skip
    assert (ordered[11].warmup, ordered[11].batch) == (5, 15360)  # the last to halve both gaps


def test_what_is_no_number_keeps_its_place(config):
    rules = [{"name": name} for name in ("sqrt", "linear", "none")]
    tasks = [Task(spec=run_spec(config(lr_rule=rule)), number=1) for rule in rules]

    assert order_by_information(tasks) == tasks


MEASURED = ("lr_rule=saturating", "lr_rule.noise_scale=measured")


def test_saturating_takes_the_noise_scale_of_an_earlier_run(ledger, grid):
    """McCandlish at a noise scale of 10,000: 0.1 at 256 becomes 1.74027 at 7,680."""
    runs = {"0a1b2c3d4e5f": 1e4, "00000000000f": None}
    for run_id, noise in runs.items():
        row = {"run_id": run_id, "attempt": 1, "outcome": "finished", "noise_scale": noise}
        ledger.publish(row, [])
    base = ("batch=7680", "base_lr=0.1", "base_batch=256")
    earlier, nothing = (grid(*MEASURED, *base, f"+lr_rule.measured_in={run}") for run in runs)
    given = grid("lr_rule=saturating", "lr_rule.noise_scale=10000", *base)

    (spec,) = plan(earlier, ledger).specs

    assert spec.schedule.peak_lr == pytest.approx(1.74027, rel=1e-5)
    assert spec.run_id == plan(given, ledger).specs[0].run_id
    with pytest.raises(ValueError, match=r"^lr_rule\.noise_scale=measured needs .* got .*00f\. "):
        plan(nothing, ledger)
    with pytest.raises(ValueError, match="above 0 where no results folder is read; got"):
        run_spec(*grid(*MEASURED))
