"""From words to configs: Hydra's grammar, composed once per choice of groups."""

import itertools
from functools import partial

import pytest
from hydra import compose, initialize_config_dir

from sweeper import CONFIG_FOLDER
from sweeper.commands import overrides, refusals
from sweeper.commands.overrides import (
    CONFIG_NAME,
    expand,
    merge_preset,
    parse,
    plain_config,
    preset_overrides,
    spell_for_hydra,
    split_values,
)
from sweeper.commands.show_plan import configs_of
from sweeper.upstream.hydras import VERSION_BASE


def test_a_grid_is_the_product_of_its_axes_in_order(grid):
    configs = grid("batch=3840,30720", "warmup=0,5,10,20")

    assert [(c["batch"], c["warmup"]) for c in configs] == [
        (batch, warmup) for batch in (3840, 30720) for warmup in (0, 5, 10, 20)
    ]


@pytest.mark.parametrize(
    ("where", "kept"),
    [
        ("batch*warmup<=1000", [(64, 0), (64, 5), (256, 0)]),
        ("'batch == 64 and not warmup'", [(64, 0)]),
        ("'linear' == lr_rule and warmup == 5 and 'a' != 'b'", [(64, 5), (256, 5)]),
        ('warmup in (5, 7) or lr_rule != "linear"', [(64, 5), (256, 5)]),
        ("batch > 2**6 and data.validation_fold - -1 == 1 and tags == null", [(256, 0), (256, 5)]),
        ("0 < batch // 100 <= 2 and warmup % 2", [(256, 5)]),
    ],
)
def test_keys_go_together_and_points_are_left_out(grid, capsys, where, kept):
    together = "together=[{batch:64,base_lr:.1},{batch:256,base_lr:.2}]"

    configs = grid("warmup=0,5", together, f"where={where}")

    assert [(config["batch"], config["warmup"]) for config in configs] == kept
    assert {(c["batch"], c["base_lr"]) for c in configs} <= {(64, 0.1), (256, 0.2)}
    assert capsys.readouterr().err == f"Left out by where: {4 - len(kept)} of 4 points.\n"


def test_words_of_a_grid_reach_its_sweeper_and_no_run(loader):
    """Hydra reads neither."""
    typed = [
        "where=batch<=5",
        "together=[{batch:5,loss_items:'a,b'},{batch:6,loss_items:c}]",
        "seed=1",
    ]
    *_, packed, seed = spell_for_hydra(loader, typed, typed)

    assert (parse([packed])[0].value(), seed) == (typed[:2], "seed=1")
    assert [config["loss_items"] for config in expand(loader, typed)] == ["a,b"]
    assert merge_preset({"batch": "7,8", "seed": "1,2"}, typed[:2]) == ["seed=1,2", *typed[:2]]


def test_presets_are_looked_for_with_classes_of_ones_own(loader):
    """As `sweeper plan` does: +data.num_train_examples is a key that our default choice has."""
    words = ["data._target_=a.Data", "+data.num_train_examples=9", "+recipe=goyal2017"]

    assert preset_overrides(loader, words) == preset_overrides(loader, words[2:])


@pytest.mark.parametrize(
    ("word", "is_told"), [("3,840", True), ("16,384", True), ("64,128", False)]
)
def test_thousands_with_a_comma_are_told_to_be_two_batches(loader, capsys, word, is_told):
    preset_overrides(loader, [f"batch={word}"])

    assert ("is two batches" in capsys.readouterr().err) == is_told


@pytest.mark.parametrize(
    "words",
    [
        ["batch=7680", "warmup=2.5", "base_lr=1e-1"],
        ["lr_rule=sqrt", "schedule=constant"],
        ["optimizer.momentum=0.95", "schedule.milestones=[5,10]"],
        ["results='a folder'", "timeout_s=null"],
        ["data.validation_fold=${seed}", "seed=3"],
        ["+data.root=/somewhere", "~precision"],
    ],
    ids=" ".join,
)
def test_a_point_is_what_hydra_itself_would_compose(grid, words):
    with initialize_config_dir(**VERSION_BASE, config_dir=str(CONFIG_FOLDER)):
        hydras = plain_config(compose(CONFIG_NAME, words))

    assert grid(*words) == [hydras]


@pytest.mark.parametrize("target", ["users.Module", "users.Summed"])
def test_an_argument_of_a_class_or_its_base_needs_no_plus(grid, loader, target):
    chosen = ["module=own", "data=own", "data._target_=users.DataModule"]
    chosen.append(f"module._target_={target}")
    words = ["module.lr=1,2", "data.root=a", "module.width='${batch}'"]

    assert grid(*chosen, *words) == grid(*chosen, *(f"+{word}" for word in words))
    assert [*spell_for_hydra(loader, [*chosen, *words], words)] == [
        "module.lr=1,2", "++data.root=a", "++module.width='${batch}'",
    ]  # fmt: skip


@pytest.fixture
def composed(monkeypatch):
    """What Hydra composes: the overrides of each time."""
    found = []

    def count(loader, words):
        found.append(words)
        return compose_once(loader, words)

    compose_once = overrides._compose
    monkeypatch.setattr(overrides, "_compose", count)
    overrides._template.cache_clear()
    overrides._own_choices.cache_clear()
    yield found
    overrides._template.cache_clear()


slow = partial(pytest.param, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("words", "times"),
    [
        (["+data.root=/x/${data.validation_fold}", "data.validation_fold=1,2"], 4),
        (["+data.root=/a,'/b${epochs}'", "epochs=30,31"], 5),
        (["data.about=${oc.select:nothing,3}", "batch=3840,7680"], 2),
        slow(["tags='${optimizer.${data.about}}'", "data.about=name"], 7),
        slow(["data=text", "data.name=${data.root}", "data.root=/x"], 7),
    ],
)
def test_points_are_composed_once_for_all_values_that_nothing_refers_to(
    composed, grid, words, times
):
    words = [*words, "warmup=0,5", "seed=range(3)"]

    configs = grid(*words)

    assert len(composed) == times
    axes = [[one.input_line for one in split_values(axis, None)] for axis in parse(words)]
    for config, point in zip(configs, itertools.product(*axes), strict=True):
        if (config["seed"], config["warmup"]) == (2, 5):
            with initialize_config_dir(**VERSION_BASE, config_dir=str(CONFIG_FOLDER)):
                assert config == plain_config(compose(CONFIG_NAME, list(point)))


PROJECT = ["module=own", "module._target_=a.Module", "data=own", "data._target_=a.Data"]


def test_keys_of_a_project_may_refer_to_each_other_and_to_the_environment(grid, monkeypatch):
    monkeypatch.setenv("PHOTOS", "/photos")
    words = [
        *PROJECT, "+data.root=${oc.env:PHOTOS}", "+data.num_classes=3,4",
        "+module.num_classes=${data.num_classes}", "+module.steps=${epochs}", "epochs=7",
    ]  # fmt: skip

    configs = grid(*words)

    assert [config["module"] for config in configs] == [
        {"_target_": "a.Module", "num_classes": num, "steps": 7} for num in (3, 4)
    ]
    assert {config["data"]["root"] for config in configs} == {"/photos"}


def test_groups_of_a_projects_own_folder_are_chosen_and_resolved(grid, tmp_path):
    """As of lightning-hydra-template, whose group `paths` only others read, and not all of it."""
    for name, text in {
        "module/photo": "_target_: a.Module\nnum_classes: ${data.num_classes}\n",
        "data/photos": "_target_: a.Data\nroot: ${paths.root}/photos\nnum_classes: 9\n",
        "paths/here": "root: /here\nout: ${hydra:runtime.output_dir}\n",
    }.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / f"{name}.yaml").write_text(text)

    (config,) = grid(
        f"hydra.searchpath=[file://{tmp_path}]", "module=photo", "data=photos", "+paths=here",
    )  # fmt: skip

    assert config["module"] == {"_target_": "a.Module", "num_classes": 9}
    assert config["data"] == {"_target_": "a.Data", "root": "/here/photos", "num_classes": 9}
    assert config["optimizer"]["_target_"] == "module.configure_optimizers"
    assert "paths" not in config


def test_a_key_that_nothing_refers_to_is_not_left_out(grid):
    (config,) = grid(*PROJECT, "+paths.root=/here", "+root=/there", "+data.root=${root}")

    assert (config["paths"], config["data"]["root"]) == ({"root": "/here"}, "/there")
    assert "root" not in config


def test_a_value_that_is_replaced_is_not_resolved_from_the_file(grid, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data/photo.yaml").write_text("_target_: a.Data\nroot: ${nobodys:1}\nsize: 2\n")
    words = [f"hydra.searchpath=[file://{tmp_path}]", *PROJECT[:2], "data=photo", "batch=32,64"]

    configs = grid(*words, "data.root=/here,/there")

    assert [c["data"]["root"] for c in configs] == ["/here", "/there"] * 2
    with pytest.raises(ValueError, match=r"data\.root must use resolvers"):
        grid(*words, "data.size=3")


def test_a_project_may_have_resolvers_of_its_own(grid, tmp_path, monkeypatch):
    code = "OmegaConf.register_new_resolver('own.double', lambda x: 2 * x, replace=True)"
    (tmp_path / "user_resolvers.py").write_text(f"from omegaconf import OmegaConf\n{code}")
    monkeypatch.syspath_prepend(tmp_path)

    configs = grid(
        *PROJECT, "resolvers=[user_resolvers]", "+data.n='${own.double:${seed}}'", "seed=1,2"
    )

    assert [c["data"]["n"] for c in configs] == [2, 4]


def test_values_may_be_sorted(grid):
    assert [c["batch"] for c in grid("batch=sort(48,24,reverse=true)")] == [48, 24]


def test_an_optimizer_may_bring_a_rate_that_anything_more_specific_replaces(grid):
    chosen = grid("optimizer=muon,sgd")
    (typed,) = grid("optimizer=muon", "base_lr=0.5")
    (unwarmed,) = grid("optimizer=clars")
    (of_recipe,) = grid("+recipe=goyal2017", "optimizer=muon", "~optimizer.nesterov")

    assert [config["base_lr"] for config in (*chosen, typed, of_recipe)] == [0.002, 0.025, 0.5, 0.1]
    assert (unwarmed["warmup"], typed["warmup"]) == (0, 5)


def test_an_argument_of_a_class_of_ones_own_is_added_by_a_plus():
    hydras = Exception("Could not override 'data.root'.")

    assert refusals.explain_error(hydras, [*PROJECT, "data.root=/a"]) == (
        "data.root must be a config key; got data.root=/a. Write +data.root=/a, if it is an "
        "argument of your class."
    )


def test_a_config_that_hydra_would_put_under_its_groups_name_is_refused(tmp_path):
    """Without `# @package _global_`, the commonest mistake with Hydra, it would set nothing."""
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment/mine.yaml").write_text("batch: 256\n")

    with pytest.raises(ValueError, match=r"must have # @package _global_ in its first line; got"):
        list(configs_of(["+experiment=mine"], config_dir=str(tmp_path)))
