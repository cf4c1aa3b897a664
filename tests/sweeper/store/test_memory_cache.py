"""What is remembered of tries, beside the results, by several sweeps at once."""

import subprocess
import sys
from dataclasses import asdict, replace

import pytest

from sweeper.spec.memory import CPU, Device
from sweeper.spec.run_spec import run_spec
from sweeper.store.lease import LEASE, holder_of, this_process
from sweeper.store.memory_cache import MemoryCache
from sweeper.store.publish import publish_json

GPU = Device(kind="NVIDIA A100", memory_gib=40.0)


@pytest.fixture
def probes(tmp_path):
    return MemoryCache(tmp_path, CPU)


@pytest.fixture
def spec(config):
    """A run of 30 spans, whose usable micro-batches are 128, 256, 384, 640 and 768."""
    return lambda **changes: run_spec(config(**{"batch": 3840, "memory_limit_gib": 2.0, **changes}))


def test_without_a_limit_a_cpu_is_not_probed_and_the_limit_rules(probes, spec):
    fit = probes.fit(spec(memory_limit_gib=None))

    assert (fit.source, fit.to_probe, fit.spec.split.micro_batch) == ("limit", None, 768)


def test_a_given_micro_batch_is_not_probed(probes, spec):
    assert probes.fit(spec(micro_batch=384)).source == "given"


@pytest.mark.parametrize(
    "changes",
    [{"bn_span": "micro"}, {"perturbation": {"name": "sam", "rho": 0.05, "gradient_span": 128}}],
)
def test_a_micro_batch_that_is_part_of_what_is_trained_is_not_probed(probes, spec, changes):
    assert probes.fit(spec(**changes)).source == "limit"


def test_what_fits_is_used_and_what_was_over_is_not(probes, spec):
    run = spec()
    assert probes.fit(run).to_probe == 128

    probes.record_fit(run, 256, peak_gib=1.5)
    assert probes.fit(run).to_probe == 384  # the largest usable within twice 256
    probes.record_over(run, 384, limit_gib=1.9)

    fit = probes.fit(run)
    assert (fit.source, fit.to_probe, fit.refusal) == ("probed", None, "")
    assert fit.spec.split.micro_batch == 256
    assert fit.spec.split.global_batch == 3840
    assert fit.spec.run_id == run.run_id
    assert fit.spec.config.micro_batch == "auto"


def test_another_limit_is_answered_from_what_was_measured(probes, spec):
    """256 took 1.5 GiB: at most 1.5 / 0.95 = 1.58 GiB must be allowed. 384 took more than 1.9."""
    run = spec()
    probes.record_fit(run, 128, peak_gib=1.0)
    probes.record_fit(run, 256, peak_gib=1.5)
    probes.record_over(run, 384, limit_gib=1.9)

    assert probes.fit(spec(memory_limit_gib=1.6)).spec.split.micro_batch == 256
    assert probes.fit(spec(memory_limit_gib=1.5)).spec.split.micro_batch == 128
    assert "must fit in memory_limit_gib=1;" in probes.fit(spec(memory_limit_gib=1.0)).refusal
    assert probes.fit(spec(memory_limit_gib=8.0)).to_probe == 384


def test_other_seeds_and_batches_share_what_is_known_and_other_models_do_not(probes, spec, config):
    probes.record_fit(spec(), 768, peak_gib=1.0)
    other = {**config()["model"], "hidden": 128}

    assert probes.fit(spec(seed=5)).source == "probed"
    assert probes.fit(spec(batch=7680)).source == "probed"
    assert probes.fit(spec(model=other)).source == "to be probed"


def test_a_torn_file_is_as_good_as_none(probes, spec, tmp_path):
    run = spec()
    probes.record_fit(run, 768, peak_gib=1.0)
    (took,) = tmp_path.glob("probes/*/768-took.json")
    whole = took.read_text()

    for torn in ("", whole[: len(whole) // 2], "[]", '{"peak_gib": null}'):
        took.write_text(torn)
        assert probes.fit(run).to_probe == 128
    took.write_text(whole)
    assert probes.fit(run).source == "probed"


def test_a_run_out_of_memory_takes_precedence_over_a_fit(probes, spec):
    run = spec()
    for micro_batch in (384, 768):
        probes.record_fit(run, micro_batch, peak_gib=1.0)

    probes.record_over(run, 768, limit_gib=None)
    assert probes.fit(run).to_probe == 640
    probes.record_over(run, 640, limit_gib=None)

    assert probes.fit(run).spec.split.micro_batch == 384
    assert probes.fit(spec(memory_limit_gib=100.0)).spec.split.micro_batch == 384


def test_one_process_tries_at_a_time_and_a_dead_one_holds_nothing(probes, spec):
    run = spec()
    assert probes.claim(run)
    assert not probes.claim(run)
    assert probes.claim(spec(precision="bf16-mixed"))

    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    holder = replace(this_process(), pid=dead.pid, born="12345")
    publish_json(probes.probe_folder(run) / LEASE, asdict(holder))
    (probes.probe_folder(run) / "checkpoint.ckpt").touch()

    assert probes.claim(run)
    assert holder_of(probes.probe_folder(run)) == this_process()
    assert not (probes.probe_folder(run) / "checkpoint.ckpt").exists()
    probes.release(run)
    assert probes.claim(run)


def test_on_a_gpu_its_memory_is_the_limit(tmp_path, spec):
    alone, shared = MemoryCache(tmp_path, GPU), MemoryCache(tmp_path, replace(GPU, runs=2))
    run = spec(memory_limit_gib=None)

    assert alone.fit(run).to_probe == 128
    assert (alone.share_of_gpu(run), shared.share_of_gpu(run)) == (1, 0.5)
    assert alone.describe(run) == "the memory of NVIDIA A100 (40 GiB)"
    assert shared.describe(run) == "the memory of NVIDIA A100 (40 GiB), shared by 2 runs"
    alone.record_fit(run, 768, peak_gib=30.0)
    assert alone.fit(run).source == "probed"
    assert shared.fit(run).source == "to be probed"


def test_a_run_on_the_cpu_of_a_machine_with_a_gpu_is_no_run_on_the_gpu(tmp_path, spec):
    probes = MemoryCache(tmp_path, GPU)
    run = spec(memory_limit_gib=None, accelerator="cpu")

    assert probes.fit(run).source == "limit"
    assert probes.share_of_gpu(run) is None
    assert probes.key(run) == MemoryCache(tmp_path, CPU).key(run)
