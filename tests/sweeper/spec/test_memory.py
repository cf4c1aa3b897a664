"""Which runs share what was measured of their memory."""

import pytest

from sweeper.spec.config import run_config
from sweeper.spec.run_memory import CPU, Device, memory_part


def part(config, device):
    return memory_part(run_config(config), device)


@pytest.mark.parametrize(
    "changes",
    [
        {"batch": 30720},
        {"seed": 7},
        {"base_lr": 0.4},
        {"warmup": 0},
        {"epochs": 90},
        {"schedule": {"name": "constant"}},
        {"memory_limit_gib": 2},
        {"results": "/elsewhere"},
    ],
)
def test_what_leaves_the_memory_alone_is_shared(config, changes):
    assert part(config(**changes), CPU) == part(config(), CPU)


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
    ],
)
def test_what_changes_the_memory_is_measured_anew(config, changes):
    assert part(config(**changes), CPU) != part(config(), CPU)


def in_group(config, group, **changes):
    return part(config(**{group: {**config()[group], **changes}}), CPU)


def test_model_data_and_the_kind_of_optimizer_count(config):
    parts = [
        part(config(), CPU),
        in_group(config, "model", hidden=65),
        in_group(config, "data", num_train_examples=1),
        in_group(config, "optimizer", _target_="torch.optim.AdamW"),
        in_group(config, "optimizer", momentum=0.0),
    ]

    assert all(a != b for i, a in enumerate(parts) for b in parts[:i])


def test_a_tuned_number_of_the_optimizer_does_not_count(config):
    assert in_group(config, "optimizer", momentum=0.95) == in_group(
        config, "optimizer", momentum=0.85
    )


def test_where_the_data_lie_does_not_count(config):
    assert in_group(config, "data", root="/here") == in_group(config, "data", root="/there")


def test_a_gpu_is_its_kind_its_memory_and_who_shares_it(config):
    gpus = [
        Device(kind="A", memory_gib=40.0),
        Device(kind="A", memory_gib=80.0),
        Device(kind="B", memory_gib=40.0),
        Device(kind="A", memory_gib=40.0, runs=2),
    ]
    parts = [part(config(), gpu) for gpu in gpus]

    assert all(a != b for i, a in enumerate(parts) for b in parts[:i])
