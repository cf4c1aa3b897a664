"""How long runs will take: from rows of their kind, else from what probes found."""

import json

import numpy as np
import pytest

from sweeper.planning.seconds import Speeds, kind_of
from sweeper.spec.run_memory import CPU, Device
from sweeper.spec.run_spec import run_spec
from sweeper.store.row import planned_row
from sweeper.store.timings import Timing, store_timings

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
    """Publish the row of a run that took so long for a step, a start and each epoch's end."""

    def publish(
        spec,
        *,
        step_s,
        start_s=1.0,
        between_s=0.5,
        device="cpu",
        attempt=1,
        evaluation_s=0.0,
        **others,
    ):
        train_s = spec.total_steps * step_s
        measured = {
            "train_s": train_s,
            "start_s": start_s,
            "wall_s": train_s + start_s + spec.epochs * between_s,
            "steps": spec.total_steps,
            "epochs_completed": spec.epochs,
            "device_kind": device,
            "num_parameters": 1_000_000,
        }
        ends = {"outcome": "finished", "attempt": attempt, "reason": ""}
        by_epoch = (train_s / spec.epochs + evaluation_s) * np.arange(1, spec.epochs + 1)
        curve = [{"epoch": n, "elapsed_s": s} for n, s in enumerate(by_epoch, 1)]
        ledger.publish({**planned_row(spec), **measured, **ends, **others}, curve)

    return publish


def test_a_run_takes_the_steps_and_epochs_of_its_kind_and_one_start(spec, trained, ledger):
    trained(spec(batch=3840), step_s=0.25, evaluation_s=0.3)

    seconds = Speeds(ledger, CPU).of(spec(batch=3840, epochs=6, seed=1, base_lr=0.1))

    parts = {"start": 1, "steps": 24, "exchange": 0, "evaluations": 1.8, "checkpoints": 1.2}
    assert seconds.parts == pytest.approx(parts)
    assert seconds.predicted.s == pytest.approx(28)


LINKS = {
    "link": "pci", "node_gb_per_s": 1.0, "network_gb_per_s": 1.0,
    "bucket_mib": 25,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "num_bytes"),
    [
        ({"hardware": LINKS}, 4_000_000),
        ({"hardware": LINKS, "precision": "64-true"}, 8_000_000),
        ({"hardware": LINKS, "comm_hook": {"name": "bf16"}}, 2_000_000),
        ({}, 0),
        ({"hardware": LINKS, "reproducible": True, "micro_batch": 640}, 0),
        ({"hardware": LINKS, "comm_hook": {"name": "powersgd", "rank": 2, "start_step": 2}}, 0),
    ],
    ids=str,
)
def test_of_several_ranks_the_exposed_exchange_is_told_apart(
    spec, trained, ledger, changes, num_bytes
):
    """A million parameters in one bucket, on a ring of 1 GB/s: at least 2 x 1/2 of the bytes."""
    run = spec(**{"batch": 3840, "devices": 2, **changes})
    trained(run, step_s=0.25)

    seconds = Speeds(ledger, CPU).of(run)

    least_s = run.total_steps * num_bytes / 1e9
    assert least_s <= seconds.parts["exchange"] <= 1.1 * least_s
    assert sum(seconds.parts.values()) == pytest.approx(seconds.total)
    assert seconds.steps == pytest.approx(run.total_steps * 0.25)


def test_an_exchange_takes_no_more_than_the_step_that_was_seen(spec, trained, ledger):
    run = spec(batch=3840, devices=2, hardware={**LINKS, "node_gb_per_s": 0.001})
    trained(run, step_s=0.25)

    parts = Speeds(ledger, CPU).of(run).parts

    assert (parts["steps"], parts["exchange"]) == (0, pytest.approx(run.total_steps * 0.25))


@pytest.mark.parametrize(
    "changes",
    [
        {"micro_batch": 384},
        {"precision": "64-true"},
        {"bn_span": 64},
        {"threads": 2},
        {"reproducible": True},
        {"gradient_clip": 1.0},
    ],
    ids=str,
)
def test_a_run_of_another_kind_is_not_known(spec, trained, ledger, changes):
    trained(spec(micro_batch=768), step_s=0.25)
    speeds = Speeds(ledger, CPU)

    assert speeds.of(spec(micro_batch=768, seed=1))
    assert speeds.of(spec(**{"micro_batch": 768, **changes})) is None


def test_rows_that_are_older_than_a_key_and_a_file_are_of_the_kind_without_it(
    spec, trained, ledger
):
    run = spec(batch=3840)
    config = dict(run.config.resolved)
    assert config.pop("module")["_target_"].endswith("Classifier")
    assert (config.pop("trainer"), config["comm_hook"].pop("nccl_algo")) == ({}, None)
    config["model"]["_target_"] = "lightning_modules.networks.SmallCNN"
    trained(run, step_s=0.25, config_json=json.dumps(config))
    speeds = Speeds(ledger, CPU)

    assert speeds.of(run)
    assert speeds.of(spec(batch=3840, module={"_target_": "myproj.Classifier"})) is None
    assert speeds.of(spec(batch=3840, trainer={"limit_val_batches": 1})) is None


def test_steps_of_other_batches_lie_on_a_line_through_those_that_were_seen(spec, trained, ledger):
    small, large = spec(batch=1536), spec(batch=3072)
    trained(small, step_s=0.3)
    of_one = Speeds(ledger, CPU).of(large).steps
    trained(large, step_s=0.5)
    of_two = Speeds(ledger, CPU).of(spec(batch=6144)).steps

    assert of_one == pytest.approx(large.total_steps * 0.6)
    assert of_two == pytest.approx(spec(batch=6144).total_steps * 0.9)


def test_another_device_tells_nothing_but_where_this_machine_has_no_gpu(spec, trained, ledger):
    on_gpu = spec(batch=3840, accelerator="gpu")
    trained(on_gpu, step_s=0.1, device="NVIDIA H100")

    assert Speeds(ledger, Device(kind="Tesla V100")).of(on_gpu) is None
    assert Speeds(ledger, CPU).of(on_gpu).steps == pytest.approx(on_gpu.total_steps * 0.1)
    trained(spec(batch=3840, accelerator="gpu", seed=1), step_s=0.2, device="Tesla V100")
    assert Speeds(ledger, CPU).of(on_gpu) is None
    for words in ("gpu", "auto"):
        same = spec(batch=3840, accelerator=words)
        assert Speeds(ledger, GPU).of(same).steps == pytest.approx(on_gpu.total_steps * 0.1)


def test_a_resumed_run_tells_nothing_of_how_long_one_attempt_takes(spec, trained, ledger):
    trained(spec(batch=3840), step_s=0.25, attempt=2)

    assert Speeds(ledger, CPU).of(spec(batch=3840)) is None


def test_a_probe_is_remembered_until_a_run_has_finished(spec, trained, ledger):
    run = spec(batch=3840)
    probed = Timing(accumulation_steps=5, step_s=1.0, start_s=2.0, between_s=0.0)
    store_timings(kind_of(run), "cpu", [probed], ledger.results)
    (ledger.results / "timings" / "damaged.json").write_text("{")

    assert Speeds(ledger, CPU).of(run).total == pytest.approx(34)
    trained(run, step_s=0.25)
    assert Speeds(ledger, CPU).of(run).total == pytest.approx(10)


def test_bounds_are_as_wide_as_sessions_differ_however_many_runs_agree(spec, trained, ledger):
    for seed in range(40):
        trained(spec(batch=3840, seed=seed), step_s=0.25)

    found = Speeds(ledger, CPU).of(spec(batch=3840)).predicted

    assert (found.least_s, found.most_s) == pytest.approx((found.s / 1.5, found.s * 1.5))


def test_rows_are_summed_up_once_however_many_runs_are_asked_for(
    spec, trained, ledger, monkeypatch
):
    for seed in range(3):
        trained(spec(batch=3840, seed=seed), step_s=0.25)
    speeds = Speeds(ledger, CPU)
    monkeypatch.setattr("sweeper.planning.seconds.median", None)

    found = {speeds.of(spec(batch=3840, seed=seed)).predicted.s for seed in range(10)}

    assert found == {2 * 16 * 0.25 + 2}
