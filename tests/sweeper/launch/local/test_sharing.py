"""Runs share a GPU as far as one of their kind, alone there, left room for others."""

import json

import pytest
from metered import train_measured

from sweeper.launch.local.launcher import run_here
from sweeper.launch.local.oom_retry import OomRetry
from sweeper.launch.local.sharing import Sharing
from sweeper.launch.local.slots import Machine, Slots
from sweeper.launch.ranks import LocalRanks
from sweeper.planning.plan import plan, tasks
from sweeper.spec.memory import Device
from sweeper.spec.outcomes import Outcome
from sweeper.spec.run_spec import run_spec
from sweeper.store.attempt import Attempt
from sweeper.store.gpu_use import gpu_use_note

GPU = Device(kind="NVIDIA H100", memory_gib=80.0)
MPS = {"CUDA_MPS_PIPE_DIRECTORY": "/pipes"}


@pytest.fixture
def spec(config):
    """A run that is like all others with the same words: ``spec(1, batch=7680)``."""
    return lambda seed, **words: run_spec(config(seed=seed, micro_batch=384, **words))


@pytest.fixture
def slots(ledger):
    """Places on GPUs of this kind: ``slots("0", "1")``."""

    def made(*gpus: str) -> Slots:
        sharing = Sharing(ledger.results, GPU, MPS)
        machine = Machine(cores=9, gpus=gpus, runs_per_gpu="auto", device=GPU)
        return Slots(machine, sharing)

    return made


@pytest.fixture
def ended(ledger):
    """An attempt at a run that was alone on its GPU and took so much of it."""

    def made(spec, *, device_gib=4.0, use_frac=0.3, kwh=1.0) -> Attempt:
        attempt = Attempt.begin(spec, ledger, 1)
        note = {"world_size": 1, "is_resumed": False, "kwh": kwh}
        note |= {"device_gib": device_gib, "use_frac": use_frac}
        (attempt.folder / gpu_use_note(0)).write_text(json.dumps(note))
        return attempt

    return made


def learn(slots: Slots, attempt: Attempt, outcome: Outcome = Outcome.FINISHED) -> bool:
    """Have a run end that had a slot."""
    assert slots.take(attempt.spec) is not None
    is_crowded = outcome == Outcome.OUT_OF_MEMORY and slots.is_shared(attempt.spec)
    slots.give_back(attempt.spec.run_id)
    slots.learn(attempt, outcome, is_crowded=is_crowded)
    return is_crowded


def places(slots: Slots, specs) -> list[str | None]:
    taken = [slots.take(spec) for spec in specs]
    return [place and place["CUDA_VISIBLE_DEVICES"] for place in taken]


def test_before_anything_is_known_each_run_is_alone(slots, spec):
    found = slots("0", "1")

    assert places(found, [spec(0), spec(1), spec(2)]) == ["0", "1", None]
    assert not found.has_room


@pytest.mark.parametrize(
    ("took", "runs"),
    [
        ({}, 3),
        ({"use_frac": 0.51}, 1),
        ({"use_frac": 0.5}, 2),
        ({"device_gib": 37.0}, 1),
        ({"device_gib": 36.0}, 2),
        ({"device_gib": 72.0, "use_frac": 0.0}, 1),
        ({"device_gib": 0.5, "use_frac": 0.0}, 8),
        ({"kwh": None}, 1),  # it was not alone
        ({"use_frac": None}, 1),
    ],
)
def test_so_many_share_as_the_memory_and_the_time_of_one_leave_room_for(
    slots, spec, ended, took, runs
):
    found = slots("0")
    learn(found, ended(spec(100), **took))

    taken = places(found, map(spec, range(10)))

    assert taken == ["0"] * runs + [None] * (10 - runs)


def test_empty_gpus_come_first_and_other_kinds_do_not_join(slots, spec, ended):
    found = slots("0", "1")
    others = [spec(seed, precision="64-true") for seed in range(200, 203)]
    for measured in (spec(100), others[0]):
        learn(found, ended(measured, use_frac=0.5))

    assert places(found, [spec(0), others[1], spec(1), spec(2)]) == ["0", "1", "0", None]
    assert found.has_room
    assert places(found, [others[2]]) == ["1"]
    assert not found.has_room
    for other in others[1:]:
        found.give_back(other.run_id)
    assert places(found, [spec(2), spec(3), spec(4)]) == ["1", "1", None]


def test_a_run_that_began_alone_stays_alone(slots, spec, ended):
    found = slots("0")
    assert places(found, [spec(0)]) == ["0"]
    found.sharing.learn(ended(spec(100)), Outcome.FINISHED)  # as another machine would

    assert places(found, [spec(1)]) == [None]


def test_ranks_of_several_gpus_share_none(slots, spec, ended):
    found = slots("0", "1")
    learn(found, ended(spec(100, devices=2)))

    assert places(found, [spec(0, devices=2), spec(1, devices=2)]) == ["0,1", None]


def test_runs_that_share_see_mps_and_one_line_says_why(slots, spec, ended):
    found = slots("0")
    learn(found, ended(spec(100)))

    assert found.take(spec(0)) == {"CUDA_VISIBLE_DEVICES": "0", **MPS}
    found.take(spec(1))
    assert found.take_notes() == [
        f"3 runs like {spec(0).point} per GPU, with MPS: one alone took 4 of 80 GiB and used the "
        "GPU 30 % of the time."
    ]
    assert found.take_notes() == []


def test_what_could_not_be_measured_is_said_once(slots, spec, ended):
    found = slots("0")
    learn(found, ended(spec(100), use_frac=None))
    learn(found, ended(spec(101), use_frac=None))

    (said,) = found.take_notes()
    assert said.startswith(
        f"1 run like {spec(100).point} per GPU: its use of the GPU could not be "
    )


def test_a_run_without_memory_beside_others_is_alone_from_then_on(slots, spec, ended):
    found = slots("0")
    learn(found, ended(spec(100)))
    crowded = ended(spec(0))

    assert learn(found, crowded, Outcome.OUT_OF_MEMORY)
    again = OomRetry().retry_alone(crowded)
    assert again.spec is crowded.spec
    assert again.number == 2
    assert places(found, [spec(0), spec(1)]) == ["0", None]

    found.give_back(spec(0).run_id)
    assert not learn(found, ended(spec(2)), Outcome.OUT_OF_MEMORY)  # alone
    learn(found, ended(spec(3)))
    assert places(found, [spec(0), spec(1)]) == ["0", None]


@pytest.mark.slow
def test_a_sweep_measures_its_first_run_and_shares_then(config, ledger):
    """Each run sees a GPU of which it takes 4 GiB and 40 % of the time; in fact it has a CPU."""
    short = {"batch": 768, "micro_batch": 384, "warmup": 0, "epochs": 1}
    short["data"] = {**config()["data"], "num_train_examples": 768}
    configs = [config(**short, seed=seed) for seed in range(4)]
    to_do = tasks(plan(configs, ledger), ledger, retry=None, rerun=None)
    machine = Machine(cores=2, gpus=("0",), runs_per_gpu="auto", device=GPU)

    at_once, said, running = [], [], set()
    for event in run_here(to_do, ledger, machine, ranks=LocalRanks(train_measured)):
        running |= {attempt.spec.run_id for attempt in event.began}
        at_once += [len(running)] * bool(event.began)
        running -= event.ended.keys()
        said += event.said

    assert at_once[0] == 1
    assert max(at_once) == 2
    (chosen,) = [text for text in said if " per GPU, " in text]
    assert chosen.startswith("2 runs like ")
    assert chosen.endswith(
        "without MPS: one alone took 4 of 80 GiB and used the GPU 40 % of the time."
    )
