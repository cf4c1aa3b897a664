"""How many runs a machine carries at once."""

import ast

import pytest

from hydra_plugins.sweeper_hydra import LocalLauncher
from sweeper.launch.local.slots import Machine, Slots, inspect_machine
from sweeper.spec.run_memory import CPU, Device
from sweeper.spec.run_spec import run_spec
from sweeper.store.ledger import Ledger


@pytest.fixture
def spec(config):
    return lambda seed, **changes: run_spec(config(seed=seed, **changes))


def test_on_a_cpu_runs_share_the_cores_by_ranks_and_threads(spec):
    slots = Slots(Machine(cores=4))

    assert slots.take(spec(0, devices=2)) == {}
    assert slots.has_room
    assert slots.take(spec(1, threads=2)) == {}
    assert not slots.has_room
    assert slots.take(spec(2)) is None
    slots.give_back(spec(1, threads=2).run_id)
    assert slots.take(spec(2)) == {}


@pytest.mark.parametrize(
    ("machine", "changes", "gpus"),
    [
        pytest.param({"cores": 1}, [{"devices": 2}, {}], ["", None], id="idle machine"),
        pytest.param({"cores": 64, "jobs": 2}, [{}, {}, {}], ["", "", None], id="jobs"),
        pytest.param(
            {"cores": 1, "gpus": "012"}, [{}, {"devices": 2}, {}], ["0", "1,2", None], id="GPUs"
        ),
        pytest.param(
            {"cores": 1, "gpus": "01", "runs_per_gpu": 2},
            [{}, {}, {}, {}, {}],
            ["0", "1", "0", "1", None],
            id="shared GPUs",
        ),
        pytest.param({"cores": 1, "gpus": "0", "jobs": 4}, [{}, {}], ["0", None], id="few GPUs"),
        pytest.param(
            {"cores": 1, "gpus": "0"},
            [{"accelerator": "cpu"}, {"accelerator": "cpu"}, {}],
            ["", None, "0"],
            id="on the CPU beside a GPU",
        ),
    ],
)
def test_a_machine_takes_as_many_runs_as_fit(spec, machine, changes, gpus):
    slots = Slots(Machine(**machine))

    taken = [slots.take(spec(seed, **change)) for seed, change in enumerate(changes)]

    assert [t if t is None else t.get("CUDA_VISIBLE_DEVICES", "") for t in taken] == gpus


DRIVER = """#!/bin/sh
case "$1" in
    --query-gpu=index) echo 0; echo 1;;
    --query-gpu=name,memory.total) echo "NVIDIA A100-SXM4-40GB, 40960"; echo "NVIDIA T4, 15360";;
esac
"""


@pytest.fixture
def driver(tmp_path, monkeypatch):
    """A machine whose driver's tool tells of two GPUs."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text(DRIVER)
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.usefixtures("driver")
def test_the_driver_tells_the_gpus_and_what_they_are():
    machine = inspect_machine(jobs="auto", runs_per_gpu=2)

    assert machine.gpus == ["0", "1"]
    assert machine.device == Device(kind="NVIDIA A100-SXM4-40GB", memory_gib=40.0, runs=2)


@pytest.mark.usefixtures("driver")
@pytest.mark.parametrize("variable", ["PATH", "CUDA_VISIBLE_DEVICES"])
def test_a_machine_without_a_driver_or_with_hidden_gpus_is_a_cpu(monkeypatch, variable):
    monkeypatch.setenv(variable, "")

    assert inspect_machine(jobs="auto", runs_per_gpu=1).device == CPU


@pytest.mark.parametrize(
    ("setting", "rule"),
    [
        ("jobs='many'", "a whole number, 1 or more, or auto"),
        ("jobs=0", "a whole number, 1 or more, or auto"),
        ("runs_per_gpu='auto'", "a whole number, 1 or more"),
    ],
)
def test_the_launcher_refuses_impossible_settings_before_anything_starts(results, setting, rule):
    name, value = setting.split("=")
    launcher = LocalLauncher(**{"jobs": "auto", "runs_per_gpu": 1, name: ast.literal_eval(value)})

    with pytest.raises(ValueError) as refused:  # noqa: PT011  compared whole
        launcher.launch_runs([], Ledger(results))

    assert str(refused.value) == f"hydra.launcher.{name} must be {rule}; got {setting}."
