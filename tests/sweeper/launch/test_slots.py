"""How many runs a machine carries at once."""

import pytest

from sweeper.domain.run_spec import run_spec
from sweeper.launch.slots import Machine, Slots


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
