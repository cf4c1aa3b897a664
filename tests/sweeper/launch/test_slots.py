"""How many runs a machine carries."""

import pytest

from sweeper.domain.run_spec import run_spec
from sweeper.launch.slots import Machine, Slots


@pytest.mark.parametrize("runs_per_gpu", [1, 2])
def test_a_gpu_carries_no_more_runs_than_it_was_given(config, runs_per_gpu):
    slots = Slots(Machine(cores=8, gpus=("0", "1"), runs_per_gpu=runs_per_gpu))

    places = [slots.take(run_spec(config(seed=seed))) for seed in range(2 * runs_per_gpu + 1)]

    *taken, beyond = places
    assert sorted(place["CUDA_VISIBLE_DEVICES"] for place in taken) == sorted("01" * runs_per_gpu)
    assert beyond is None
    assert not slots.has_room


def test_there_is_room_again_when_a_run_has_ended(config):
    slots = Slots(Machine(cores=1))
    spec = run_spec(config())

    assert slots.has_room
    slots.take(spec)
    assert not slots.has_room
    slots.give_back(spec.run_id)
    assert slots.has_room
