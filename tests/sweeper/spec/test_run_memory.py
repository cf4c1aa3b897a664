"""Which runs share what was measured of their memory, and the memory by class that is predicted."""

import pytest

from sweeper.spec.config import run_config
from sweeper.spec.run_memory import CLASSES, DEVICE, MemoryTrace, cost_settings

GIB = 2**30


@pytest.fixture
def settings(config):
    """What the cost of a micro-batch depends on: ``settings(data={"root": "/here"})``."""

    def changed(**changes):
        defaults = config()
        merged = {
            key: {**defaults[key], **value} if key in {"model", "data", "optimizer"} else value
            for key, value in changes.items()
        }
        return cost_settings(run_config({**defaults, **merged}).resolved)

    return changed


@pytest.mark.parametrize(
    "changes",
    [
        {"batch": 30720, "seed": 7, "base_lr": 0.4, "warmup": 0, "epochs": 90},
        {"schedule": {"name": "constant"}},
        {"memory_limit_gib": 2, "results": "/elsewhere"},
        {"optimizer": {"momentum": 0.85}},
        {"data": {"root": "/there"}},
    ],
    ids=str,
)
def test_what_leaves_the_memory_alone_is_shared(settings, changes):
    assert settings(**changes) == settings()


@pytest.mark.parametrize(
    "changes",
    [
        {"precision": "bf16-mixed"},
        {"bn_span": 64},
        {"ema_decay": 0.9},
        {"gradient_clip": 1.0},
        {"devices": 2},
        {"threads": 2},
        {"perturbation": {"name": "sam", "rho": 0.1, "gradient_span": 128}},
        {"model": {"hidden": 65}},
        {"data": {"num_train_examples": 7680}},
        {"optimizer": {"_target_": "torch.optim.AdamW"}},
        {"optimizer": {"momentum": 0.0}},
    ],
    ids=str,
)
def test_what_changes_the_memory_is_measured_anew(settings, changes):
    assert settings(**changes) != settings()


def bytes_of(*gib):
    return dict(zip(CLASSES, (int(size * GIB) for size in gib), strict=True))


@pytest.mark.parametrize(
    ("larger", "micro_batch", "expected"),
    [
        pytest.param((1, 1, 2, 0.75, 0.5), 20, (1, 1, 2, 1.5, 1.25), id="on a line"),
        pytest.param(None, 8, (1, 1, 2, 1, 0.5), id="from one size in proportion"),
        pytest.param((1, 1, 2, 2, 0.25), 1, (1, 1, 2, 0, 0.25), id="not below nothing"),
    ],
)
def test_classes_are_affine_in_the_micro_batch(larger, micro_batch, expected):
    sizes = {4: bytes_of(1, 1, 2, 0.5, 0.25)} | ({8: bytes_of(*larger)} if larger else {})
    trace = MemoryTrace(classes=sizes)

    found = trace.classes_at(micro_batch, on_gpu=True)

    assert found == {**dict(zip(CLASSES, expected, strict=True)), DEVICE: 0}
    assert MemoryTrace.model_validate_json(trace.model_dump_json()) == trace


def test_what_could_not_be_traced_is_not_known():
    assert MemoryTrace(why_not="it failed").classes_at(4, on_gpu=False) == {}


@pytest.mark.parametrize("held", [float("nan"), float("inf")])
def test_numbers_are_finite(held):
    with pytest.raises(ValueError, match="finite"):
        MemoryTrace(held_gib=held)


@pytest.mark.parametrize(
    ("classes", "sizes", "micro_batch", "more_gib"),
    [  # 64 blocks of 16 MiB; with twice the examples they have 32 MiB
        pytest.param((0, 0, 0, 1, 0), {2**24: 64}, 4, 0.65, id="small blocks are kept"),
        pytest.param((0, 0, 0, 1, 0), {2**24: 64}, 8, 0, id="large blocks are returned"),
        # 3 GiB are saved when half a GiB of activations is gone
        pytest.param((1, 1, 2, 0.5, 0), {}, 4, 2.5, id="a checkpoint may need more"),
    ],
)
def test_a_process_on_a_cpu_holds_more_than_its_tensors(classes, sizes, micro_batch, more_gib):
    trace = MemoryTrace(classes={4: bytes_of(*classes)}, sizes=sizes, held_gib=0.5)

    device_gib = trace.classes_at(micro_batch, on_gpu=False)[DEVICE]

    assert device_gib == pytest.approx(0.5 + 0.02 + more_gib)
