"""How long runs will take: from rows of their kind, else from what probes found."""

import json

import pytest

from sweeper.planning.seconds import Speeds, Timing, store_timings, time_kind
from sweeper.spec.run_memory import CPU, Device
from sweeper.spec.run_spec import run_spec
from sweeper.store.run_columns import planned_row

SHORT = {
    "accelerator": "cpu", "epochs": 2, "warmup": 0, "schedule": {"name": "constant"},
    "micro_batch_limit": 768,
}  # fmt: skip
GPU = Device(kind="NVIDIA H100", memory_gib=80.0)


@pytest.fixture
def spec(config):
    """A run: ``spec(batch=7680)``."""
    return lambda **keys: run_spec(config(**{**SHORT, **keys}))


@pytest.fixture
def trained(ledger):
    """Publish the row of a run that took so long for a step; a second to start, half an epoch."""

    def publish(spec, *, step_s, device="cpu", attempt=1, **others):
        train_s = spec.total_steps * step_s
        measured = {
            "train_s": train_s,
            "start_s": 1.0,
            "wall_s": train_s + 1.0 + spec.epochs * 0.5,
            "steps": spec.total_steps,
            "epochs_completed": spec.epochs,
            "device_kind": device,
        }
        ends = {"outcome": "finished", "attempt": attempt, "reason": ""}
        ledger.publish({**planned_row(spec), **measured, **ends, **others}, [])

    return publish


def test_a_run_takes_the_steps_and_epochs_of_its_kind_and_one_start(spec, trained, ledger):
    for seed in range(3):
        trained(spec(batch=3840, seed=seed), step_s=0.25)

    seconds = Speeds(ledger, CPU).predict(spec(batch=3840, epochs=6, seed=7, base_lr=0.1))

    assert (seconds.start, seconds.steps, seconds.between) == pytest.approx((1, 24, 3))
    predicted = seconds.predicted
    assert (predicted.s, predicted.least_s, predicted.most_s) == pytest.approx((28, 28 / 1.5, 42))


@pytest.mark.parametrize(
    "changes",
    [
        {"micro_batch": 384},
        {"precision": "64-true"},
        {"bn_span": 64},
        {"threads": 2},
        {"reproducible": True},
        {"gradient_clip": 1.0},
        {"module": {"_target_": "myproj.Classifier"}},
        {"trainer": {"limit_val_batches": 1}},
    ],
    ids=str,
)
def test_a_run_of_another_kind_is_not_known(spec, trained, ledger, changes):
    trained(spec(micro_batch=768), step_s=0.25)
    speeds = Speeds(ledger, CPU)

    assert speeds.predict(spec(micro_batch=768, seed=1))
    assert speeds.predict(spec(**{"micro_batch": 768, **changes})) is None


def test_rows_that_are_older_than_a_key_and_a_file_are_of_the_kind_without_it(
    spec, trained, ledger
):
    run = spec(batch=3840)
    config = dict(run.config.resolved)
    assert config.pop("module")["_target_"].endswith("Classifier")
    assert (config.pop("trainer"), config["comm_hook"].pop("nccl_algo")) == ({}, None)
    config["model"]["_target_"] = "lightning_modules.networks.SmallCNN"
    trained(run, step_s=0.25, config_json=json.dumps(config))

    assert Speeds(ledger, CPU).predict(run)


def test_steps_of_other_batches_lie_on_a_line_through_those_that_were_seen(spec, trained, ledger):
    small, large = spec(batch=1536), spec(batch=3072)
    trained(small, step_s=0.3)
    of_one = Speeds(ledger, CPU).predict(large).steps
    trained(large, step_s=0.5)
    of_two = Speeds(ledger, CPU).predict(spec(batch=6144)).steps

    assert of_one == pytest.approx(large.total_steps * 0.6)
    assert of_two == pytest.approx(spec(batch=6144).total_steps * 0.9)


def test_a_batch_that_grows_within_an_epoch_takes_the_time_of_each_of_its_steps(
    spec, trained, ledger
):
    """Half of 61,440 examples in 20 steps of 0.3 s, the other half in 10 of 0.5 s."""
    schedule = {"name": "growing_batch", "milestones": [50], "factor": 2, "max_batch": 3072}
    schedule["growth"] = "milestones"
    trained(spec(batch=1536), step_s=0.3)
    trained(spec(batch=3072), step_s=0.5)

    ramp = spec(batch=1536, epochs=1, schedule=schedule, warmup_unit="percent")

    assert Speeds(ledger, CPU).predict(ramp).steps == pytest.approx(6 + 5)


def test_another_device_tells_nothing_but_where_this_machine_has_no_gpu(spec, trained, ledger):
    on_gpu = spec(batch=3840, accelerator="gpu")
    trained(on_gpu, step_s=0.1, device="NVIDIA H100")

    assert Speeds(ledger, Device(kind="Tesla V100")).predict(on_gpu) is None
    assert Speeds(ledger, CPU).predict(on_gpu).steps == pytest.approx(on_gpu.total_steps * 0.1)
    trained(spec(batch=3840, accelerator="gpu", seed=1), step_s=0.2, device="Tesla V100")
    assert Speeds(ledger, CPU).predict(on_gpu) is None
    for words in ("gpu", "auto"):
        same = spec(batch=3840, accelerator=words)
        assert Speeds(ledger, GPU).predict(same).steps == pytest.approx(on_gpu.total_steps * 0.1)


def test_a_probe_is_remembered_until_a_run_has_finished(spec, trained, ledger):
    run = spec(batch=3840)
    trained(run, step_s=0.25, attempt=2)  # says nothing of how long a single attempt takes
    assert Speeds(ledger, CPU).predict(run) is None
    kind = time_kind(run.config.resolved, run.split.micro_batch)
    probed = Timing(accumulation_steps=5, step_s=1.0, start_s=2.0, between_s=0.0)
    store_timings(kind, "cpu", [probed], ledger.results)
    (ledger.results / "timings" / "damaged.json").write_text("{")

    assert Speeds(ledger, CPU).predict(run).total == pytest.approx(34)
    trained(spec(batch=3840, seed=1), step_s=0.25)
    assert Speeds(ledger, CPU).predict(run).total == pytest.approx(10)
