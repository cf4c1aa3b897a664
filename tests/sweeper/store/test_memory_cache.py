"""What is remembered of memory beside the results, and which micro-batch follows."""

import os
from contextlib import nullcontext
from dataclasses import replace

import pytest

from sweeper.spec.run_memory import CLASSES, CPU, Device, MemoryTrace
from sweeper.spec.run_spec import run_spec, with_micro_batch
from sweeper.store.memory_cache import MemoryCache

GIB = 2**30
#: A quarter of a GiB of parameters, and 1/512 GiB of activations for each example; with libraries,
#: micro-batches of 640 take 1.75 of 0.95 x 2 GiB, and 768 take 2.
TRACE = MemoryTrace(
    classes={
        size: dict.fromkeys(CLASSES, 0) | {"parameters": GIB // 4, "activations": size * GIB // 512}
        for size in (128, 256)
    },
    held_gib=0.23,
)


@pytest.fixture
def memory(tmp_path):
    return MemoryCache(tmp_path, CPU)


@pytest.fixture
def spec(config):
    """A run of 30 spans, whose usable micro-batches are 128, 256, 384, 640 and 768."""
    settings = {"batch": 3840, "memory_limit_gib": 2.0, "micro_batch_limit": 768}
    return lambda **changes: run_spec(config(**{**settings, **changes}))


def predicted(fit):
    """The micro-batch, and all classes together [GiB]."""
    return fit.spec.split.micro_batch, pytest.approx(sum(fit.classes.values()))


@pytest.mark.parametrize(
    "changes",
    [
        {"memory_limit_gib": None},
        {"bn_span": "micro"},
        {"loss_span": "micro"},
        {"perturbation": {"name": "sam", "rho": 0.05, "gradient_span": 128}},
    ],
)
def test_without_a_limit_and_where_it_is_part_of_what_is_trained_memory_chooses_none(
    memory, spec, changes
):
    fit = memory.fit(spec(**changes))

    assert (fit.source, fit.classes, fit.spec.facts.predicted_memory_gib) == ("limit", {}, None)


def test_the_largest_that_is_predicted_to_fit_is_taken(memory, spec, config):
    run = spec()
    assert (memory.fit(run).source, memory.is_traced(run)) == ("to be traced", False)

    memory.record_trace(run, TRACE)

    fit = memory.fit(run)
    assert memory.is_traced(run)
    assert (fit.source, fit.refusal, fit.fails) == ("predicted", "", 768)
    assert predicted(fit) == (640, 1.75)
    assert fit.spec.split.global_batch == 3840
    assert fit.spec.run_id == run.run_id
    assert fit.spec.config.micro_batch == "auto"
    assert fit.spec.facts.predicted_memory_gib == sum(fit.classes.values())
    assert memory.fit(spec(memory_limit_gib=1.6)).spec.split.micro_batch == 384
    assert memory.fit(spec(memory_limit_gib=8.0)).spec.split.micro_batch == 768
    assert memory.fit(spec(seed=5, batch=7680)).source == "predicted"
    other_model = {**config()["model"], "hidden": 128}
    assert memory.fit(spec(model=other_model)).source == "to be traced"
    given = memory.fit(spec(micro_batch=384))
    assert (given.source, predicted(given)) == ("given", (384, 1.25))


@pytest.mark.parametrize(
    ("measured", "peak_gib", "expected"),
    [  # A quarter of a GiB more than predicted, with any micro-batch: 640 would take 2 GiB.
        pytest.param(128, 1.0, (384, 1.5), id="corrects the prediction"),
        pytest.param(640, 1.95, (640, 1.95), id="is taken up to the whole limit"),
        pytest.param(640, 2.05, (384, 1.55), id="exceeds the limit"),
    ],
)
def test_measured_peaks_are_used(memory, spec, measured, peak_gib, expected):
    run = spec()
    memory.record_trace(run, TRACE)

    memory.record_run(with_micro_batch(run, measured), peak_gib)

    assert predicted(memory.fit(run)) == expected


@pytest.mark.parametrize(
    ("trace", "source"), [(TRACE, "predicted"), (MemoryTrace(why_not="it has no data"), "limit")]
)
def test_what_ran_out_of_memory_takes_precedence_over_any_prediction(memory, spec, trace, source):
    """Without a trace, `micro_batch_limit` decides until a run fails."""
    run = spec(memory_limit_gib=100.0)
    memory.record_trace(run, trace)
    assert memory.is_traced(run)
    assert memory.fit(run).spec.split.micro_batch == 768

    memory.record_run(with_micro_batch(run, 640), 1.75)
    memory.record_run(with_micro_batch(run, 640), None)

    fit = memory.fit(run)
    assert (fit.source, fit.spec.split.micro_batch) == (source, 384)


def test_a_torn_file_is_as_good_as_none(memory, spec, tmp_path):
    run = spec()
    memory.record_trace(run, TRACE)
    memory.record_run(with_micro_batch(run, 128), 1.0)
    memory.record_run(with_micro_batch(run, 384), None)
    paths = [next(tmp_path.glob(f"memory/*/{name}.json")) for name in ("128-took", "384-over")]
    (traced,) = tmp_path.glob("memory/*/trace.json")

    for torn in ("", "[]"):
        for path in paths:
            path.write_text(torn)
        assert memory.fit(run).spec.split.micro_batch == 640
    for torn in ("", traced.read_text()[:100], "[]"):
        traced.write_text(torn)
        assert memory.fit(run).source == "to be traced"


def test_on_a_gpu_its_memory_is_the_limit(tmp_path, spec):
    """Beside the tensors nothing is known of a GPU before the first run: 768 take 1.75 GiB."""
    small = Device(kind="NVIDIA A100", memory_gib=3.0)
    alone, shared = MemoryCache(tmp_path, small), MemoryCache(tmp_path, replace(small, runs=2))
    run = spec(memory_limit_gib=None)
    for memory in (alone, shared):
        memory.record_trace(run, TRACE)

    assert (alone.allowed_gib(run), shared.allowed_gib(run)) == (2, 0.5)
    assert alone.fit(run).spec.split.micro_batch == 768
    assert alone.fit(run).classes["device"] == 0
    refusal = shared.fit(run).refusal
    assert "must fit in the memory of NVIDIA A100 (3 GiB), shared by 2 runs; got" in refusal
    assert "is predicted to need 0.5 GiB" in refusal
    on_cpu = spec(accelerator="cpu", memory_limit_gib=None)
    assert alone.allowed_gib(on_cpu) is None
    assert alone.key(on_cpu) == MemoryCache(tmp_path, CPU).key(on_cpu)
    assert len({cache.key(run) for cache in (alone, shared, MemoryCache(tmp_path, CPU))}) == 3


@pytest.mark.parametrize(("number", "is_said"), [(13, False), (30, False), (28, True)])
def test_a_folder_of_another_user_s_is_only_read(memory, spec, monkeypatch, number, is_said):
    """What is remembered only saves time: without it a sweep and a plan go on."""

    def refuse(path, **settings):
        del settings
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr("pathlib.Path.mkdir", refuse)

    with pytest.raises(OSError, match="No space left") if is_said else nullcontext():
        memory.record_run(spec(), 1.5)
