"""How many runs a machine carries at once."""

import ast

import pytest

from hydra_plugins.sweeper_hydra import LocalLauncher
from sweeper.launch.local.slots import Machine, Slots, this_machine
from sweeper.spec.run_memory import CPU, Device
from sweeper.spec.run_spec import run_spec
from sweeper.store.ledger import Ledger


@pytest.fixture
def spec(config):
    return lambda seed, **changes: run_spec(config(seed=seed, **changes))


def test_on_a_cpu_runs_share_the_cores_by_ranks_and_threads(spec):
    slots = Slots(Machine(cores=4))

    assert slots.take(spec(0, devices=2)) == {}
    assert slots.take(spec(1, threads=2)) == {}
    assert slots.take(spec(2)) is None
    slots.give_back(spec(1, threads=2).run_id)
    assert slots.take(spec(2)) == {}


def test_an_idle_machine_takes_a_run_larger_than_itself(spec):
    slots = Slots(Machine(cores=1))

    assert slots.take(spec(0, devices=2)) == {}
    assert slots.take(spec(1)) is None


def test_jobs_says_how_many(spec):
    slots = Slots(Machine(cores=64, jobs=2))

    assert [slots.take(spec(seed)) for seed in range(3)] == [{}, {}, None]


def test_each_run_gets_a_gpu_of_its_own(spec):
    slots = Slots(Machine(cores=1, gpus=("0", "1", "2")))

    assert slots.take(spec(0)) == {"CUDA_VISIBLE_DEVICES": "0"}
    assert slots.take(spec(1, devices=2)) == {"CUDA_VISIBLE_DEVICES": "1,2"}
    assert slots.take(spec(2)) is None
    slots.give_back(spec(0).run_id)
    assert slots.take(spec(2)) == {"CUDA_VISIBLE_DEVICES": "0"}


def test_several_runs_share_a_gpu_where_asked(spec):
    slots = Slots(Machine(cores=1, gpus=("0", "1"), runs_per_gpu=2))

    taken = [slots.take(spec(seed)) for seed in range(5)]

    assert [place and place["CUDA_VISIBLE_DEVICES"] for place in taken] == [
        "0", "1", "0", "1", None,
    ]  # fmt: skip


def test_more_jobs_than_gpus_wait_for_a_gpu(spec):
    slots = Slots(Machine(cores=1, gpus=("0",), jobs=4))

    assert slots.take(spec(0)) == {"CUDA_VISIBLE_DEVICES": "0"}
    assert slots.take(spec(1)) is None


def test_a_run_on_the_cpu_of_a_machine_with_gpus_takes_cores(spec):
    slots = Slots(Machine(cores=1, gpus=("0",)))

    assert slots.take(spec(0, accelerator="cpu")) == {}
    assert slots.take(spec(1, accelerator="cpu")) is None
    assert slots.take(spec(2)) == {"CUDA_VISIBLE_DEVICES": "0"}


def test_there_is_room_again_when_a_run_has_ended(spec):
    slots = Slots(Machine(cores=1))

    assert slots.has_room
    slots.take(spec(0))
    assert not slots.has_room
    slots.give_back(spec(0).run_id)
    assert slots.has_room


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
    machine = this_machine(jobs="auto", runs_per_gpu=2)

    assert machine.gpus == ("0", "1")
    assert machine.device == Device(kind="NVIDIA A100-SXM4-40GB", memory_gib=40.0, runs=2)


def test_a_machine_without_a_driver_is_a_cpu(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    assert this_machine(jobs="auto", runs_per_gpu=1).device == CPU


@pytest.mark.usefixtures("driver")
def test_gpus_that_are_hidden_are_not_there(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    assert this_machine(jobs="auto", runs_per_gpu=1).device == CPU


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
