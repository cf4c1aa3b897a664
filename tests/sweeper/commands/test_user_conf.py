"""A project with Hydra configs of its own, as lightning-hydra-template makes them."""

import json
import os

import pytest

from sweeper.commands.show_plan import configs_of

#: A project in small: its module is in the group `model`, and `data/mnist` is one of its own.
PROJECT = {
    "train": "defaults: [_self_, {data: mnist}, {model: net}]\n",
    "config": "batch: 7\n",
    "data/mnist": ("_target_: users.DataModule\nroot: ${paths.data_dir}\nbatch_size: 128\n"),
    "model/net": (
        "_target_: mini.Net\ntotal: ${trainer.max_epochs}\nper_step: ${data.batch_size}\n"
        "optimizer: {_target_: torch.optim.SGD, _partial_: true, lr: 0.1}\n"
    ),
    "model/plain": "_target_: mini.Plain\n",
    "paths/default": (
        "root_dir: ${oc.env:PROJECT_ROOT}\ndata_dir: ${paths.root_dir}/data/\n"
        "output_dir: ${hydra:runtime.output_dir}\n"
    ),
    "trainer/default": (
        "_target_: lightning.Trainer\ndefault_root_dir: ${paths.output_dir}\nmax_epochs: 10\n"
        "devices: 1\ndeterministic: true\n"
    ),
    "trainer/ddp": "defaults: [default]\ndevices: 4\nstrategy: ddp\n",
    "callbacks/early": (
        "early: {_target_: lightning.pytorch.callbacks.EarlyStopping, monitor: val/loss, "
        "patience: 3}\n"
    ),
    "callbacks/default": (
        "defaults: [early]\nkeep:\n  _target_: lightning.pytorch.callbacks.ModelCheckpoint\n"
        "  dirpath: ${paths.output_dir}/kept\nprogress: {leave: true}\n"
    ),
    "logger/csv": "csv: {_target_: lightning.pytorch.loggers.CSVLogger, save_dir: '{folder}'}\n",
    "logger/many": "defaults: [csv]\ntb: {_target_: a.B}\n",
    "extras/default": "print_config: true\n",
    "experiment/small": (
        "# @package _global_\ndefaults: [override /data: mnist, override /callbacks: default, "
        "override /trainer: default]\ntags: [a, b]\nseed: 12\n"
        "trainer: {max_epochs: 3, gradient_clip_val: 0.5}\nmodel: {optimizer: {lr: 0.2}}\n"
    ),
    "hydra/default": "run: {dir: '${paths.log_dir}'}\n",
}

MINI = """
from users import Module
from torch import nn

class Base(Module):
    pass

class Net(Base):
    def __init__(self, **settings):
        super().__init__()

class Plain(nn.Linear):
    pass
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.delenv("PROJECT_ROOT", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]]))
    (tmp_path / "mini").mkdir()
    (tmp_path / "mini/__init__.py").write_text("from .net import Net, Plain\n")
    (tmp_path / "mini/net.py").write_text(MINI)
    (tmp_path / ".project-root").touch()
    for name, text in PROJECT.items():
        path = tmp_path / f"configs/{name}.yaml"
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text)
    yield tmp_path / "configs"
    os.environ.pop("PROJECT_ROOT", None)


def test_a_project_is_read_as_it_is(folder):
    (config,) = configs_of(
        ["model=net", "data=mnist", "batch=48", "epochs=4"], config_dir=str(folder)
    )

    assert config["module"] == {
        "_target_": "mini.Net",
        "total": 4,
        "per_step": 48,
        "optimizer": {"_target_": "torch.optim.SGD", "_partial_": True, "lr": 0.1},
    }
    root = f"{folder.parent}/data/"
    assert config["data"] == {
        "_target_": "users.DataModule", "root": root, "batch_size": 48,
    }  # fmt: skip
    assert config["optimizer"]["_target_"] == "module.configure_optimizers"
    assert (config["bn_span"], config["base_lr"], config["trainer"]) == ("auto", None, {})
    assert not config.keys() & {"paths", "extras", "callbacks", "experiment"}


def test_its_groups_are_chosen_and_set_as_in_its_own_application(folder, capsys):
    words = ["model=net", "experiment=small", "logger=csv", "hydra=default", "batch=48,96"]
    words += ["callbacks.early.patience=1,2", "+trainer.callbacks=[{_target_:a.Own}]"]
    words += ["extras.print_config=false", "model.total=7"]

    configs = [*configs_of(words, config_dir=str(folder))]

    callbacks = [config["trainer"]["callbacks"] for config in configs]
    assert [early["patience"] for early, _, _ in callbacks] == [1, 2] * 2
    assert [(keep["dirpath"], own["_target_"]) for _, keep, own in callbacks] == [
        ("${hydra:runtime.output_dir}/kept", "a.Own")
    ] * 4
    assert [c["data"]["_target_"] for c in configs] == ["users.DataModule"] * 4
    first = configs[0]
    assert first["trainer"].keys() == {"callbacks", "gradient_clip_val"}
    assert first["module"]["optimizer"]["lr"] == 0.2
    assert (first["module"]["total"], first["tags"], first["seed"]) == (7, "a,b", 12)
    said = capsys.readouterr().err
    assert "Left out: hydra=default, " in said
    assert said.count("Left out of trainer") == 1
    assert "max_epochs=3 (set epochs)" in said
    assert "deterministic=true (set reproducible)" in said


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["trainer=default", "trainer.max_epochs=5"],
         "trainer.max_epochs must be left to the run; got trainer.max_epochs=5. Set epochs."),
        (["trainer=default", "+trainer.max_epochs=5"],
         "trainer.max_epochs must be left to the run; got +trainer.max_epochs=5. Set epochs."),
        (["model.total=${trainer.max_steps}"],
         "model.total refers to trainer.max_steps, which the run decides. Write a value: "
         "model.total=VALUE."),
        (["logger=many"],
         "logger must be one logger; got csv, tb. Choose one of them: logger=csv."),
    ],
)  # fmt: skip
def test_a_refusal_of_a_project_can_be_followed(folder, command, words, sentence):
    said = command("plan", "--config-dir", folder, "model=net", "data=mnist", *words)

    assert said.returncode == 2
    assert said.stderr.endswith(f"{sentence}\n")


OWN = "_target_: users.Module\nwidth: 3\n"


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, ["+module={width:3}", "module._target_=users.Module"]),
        ({}, ["+model={_target_:users.Module,width:3}"]),
        ({"experiment/mine": "# @package _global_\nmodule: {_target_: users.Module, width: 3}"},
         ["+experiment=mine"]),
        ({"module/classifier": OWN}, ["module=classifier"]),
        ({"module/mine": OWN, "experiment/mine": "# @package _global_\ndefaults: "
          "[override /module: mine]\n"}, ["experiment=mine"]),
    ],
)  # fmt: skip
def test_the_defaults_are_those_of_the_class_however_it_is_given(tmp_path, files, words):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.yaml").write_text(text)

    (config,) = configs_of(words, config_dir=str(tmp_path))

    assert config["module"] == {"_target_": "users.Module", "width": 3}
    assert config["optimizer"]["_target_"] == "module.configure_optimizers"
    assert (config["schedule"], config["bn_span"]) == ({"name": "constant"}, "auto")


@pytest.mark.parametrize("mode", [["plan", "--no-memory"], ["-m"], []])
def test_data_of_an_experiment_get_no_settings_of_our_default(tmp_path, command, mode):
    (tmp_path / "experiment").mkdir()
    text = "# @package _global_\ndata: {_target_: nowhere.Data}\n"
    (tmp_path / "experiment/mine.yaml").write_text(text)
    words = ["+experiment=mine", "+data.num_train_examples=96"]

    said = command(*mode, "--config-dir", tmp_path, *words, "bn_span=1", "batch=48")

    assert "data._target_ must name something that can be imported" in said.stderr


def test_an_optimizer_that_the_module_completes_is_the_modules(folder):
    adam = "_target_: torch.optim.Adam\n_partial_: true\nlr: 0.1\n"
    for name, text in {
        "optimizer/adam": adam,
        "scheduler/step": "gamma: 0.3\n",
        "model/net": "_target_: mini.Net\noptimizer: ${optimizer}\ngamma: ${scheduler.gamma}\n",
    }.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / f"{name}.yaml").write_text(text)
    words = ["model=net", "data=mnist", "optimizer=adam", "scheduler=step", "optimizer.lr=0.2,0.3"]

    configs = list(configs_of(words, config_dir=str(folder)))

    assert [config["module"]["optimizer"]["lr"] for config in configs] == [0.2, 0.3]
    assert {config["module"]["gamma"] for config in configs} == {0.3}
    assert {c["optimizer"]["_target_"] for c in configs} == {"module.configure_optimizers"}


def test_a_network_in_the_group_model_is_one_of_our_classifier(folder):
    (config,) = configs_of(["model=plain"], config_dir=str(folder))

    assert config["module"]["_target_"].endswith(".Classifier")
    assert config["model"] == {"_target_": "mini.Plain"}


@pytest.mark.parametrize("mode", [[], ["-m"]])
def test_a_run_has_an_output_folder_of_its_own(folder, tmp_path, command, mode):
    (folder / "model/net.yaml").write_text("_target_: users.Module\n")
    (folder / "data/mnist.yaml").write_text("_target_: users.DataModule\nbatch_size: 9\n")
    (folder / "callbacks/default.yaml").write_text(
        "keep:\n  _target_: lightning.pytorch.callbacks.ModelCheckpoint\n"
        "  dirpath: ${paths.output_dir}/kept\n"
    )

    done = command(
        *mode, "--config-dir", folder, "model=net", "data=mnist", "callbacks=default", "batch=48",
        "base_batch=48", "warmup=0", "epochs=1", "metric=train/mse", "metric_mode=min",
        f"results={tmp_path / 'results'}",
    )  # fmt: skip

    assert done.returncode == 0, done.stdout
    (attempt,) = (tmp_path / "results/attempts").glob("*/001")
    assert list(attempt.glob("files/kept/*.ckpt"))
    stored = json.loads((attempt / "config.json").read_text())
    (callback,) = stored["trainer"]["callbacks"]
    assert callback["dirpath"] == "${hydra:runtime.output_dir}/kept"


def test_a_network_that_cannot_be_made_is_refused_before_anything_starts(command, results):
    said = command("-m", "model._target_=torch.nn.Threshold", "bn_span=1", f"results={results}")

    assert said.returncode == 2
    assert "Threshold(threshold: float, value: float" in said.stderr
