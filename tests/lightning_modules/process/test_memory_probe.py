"""A run in brief: all that takes memory, and nothing that depends on how it goes on."""

import pytest

from lightning_modules.process.memory_probe import brief
from sweeper.spec.config import run_config
from sweeper.spec.memory import CPU, memory_part

POWERSGD = {"name": "powersgd", "rank": 2, "start_step": 10}
LOCAL = {"name": "post_local_sgd", "workers": 2, "local_steps": 16, "start_epoch": 30}


def of_run(config, micro_batch):
    return brief(run_config(config), micro_batch)


def test_it_accumulates_takes_three_steps_and_a_second_epoch(config):
    """At the second micro-batch gradients are there, at the second step momentum is."""
    spec = of_run(config(batch=30720, devices=4), 256)

    assert (spec.split.micro_batch, spec.split.accumulation_steps) == (256, 2)
    assert spec.split.world_size == spec.config.devices == 1
    assert spec.epochs >= 2
    assert spec.epochs * spec.steps_at(0) >= 3
    assert spec.bn_span == 128
    assert not any(spec.schedule.lr(step) for step in range(8))


@pytest.mark.parametrize(("examples", "accumulation", "steps"), [(1500, 1, 1), (1536, 2, 1)])
def test_a_small_data_set_is_gone_through_more_often(config, examples, accumulation, steps):
    data = {**config()["data"], "num_train_examples": examples}

    spec = of_run(config(data=data, batch=768), 768)

    assert (spec.split.accumulation_steps, spec.steps_at(0)) == (accumulation, steps)
    assert spec.epochs == 3


def test_the_loss_scaler_may_skip_steps(config):
    spec = of_run(config(precision="16-mixed"), 256)

    assert spec.epochs * spec.steps_at(0) == 8


@pytest.mark.parametrize(
    ("comm_hook", "devices"),
    [
        (POWERSGD, 1),
        (LOCAL, 2),
        ({"name": "hierarchical", "ranks_per_node": 2, "nccl_algo": None}, 2),
    ],
)
def test_a_special_exchange_of_gradients_begins_at_once(config, comm_hook, devices):
    """PowerSGD's buffers are made at its start step: the third at the latest."""
    spec = of_run(config(comm_hook=comm_hook, devices=devices), 256)

    assert getattr(spec.config.comm_hook, "start_step", 2) == 2
    assert getattr(spec.config.comm_hook, "start_epoch", 1) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"precision": "bf16-mixed"},
        {"ema_decay": 0.99},
        {"gradient_clip": 1.0},
        {"label_smoothing": 0.1},
        {"lr_rule": {"name": "legw", "warmup_exponent": 1}, "warmup": 0.1},
        {"loss_ceiling": 4.0},
    ],
)
def test_it_is_of_the_same_kind_as_the_run(config, changes):
    """All that the memory depends on is as in the run."""
    run = config(**changes)

    assert memory_part(of_run(run, 256).config, CPU) == memory_part(run_config(run), CPU)
