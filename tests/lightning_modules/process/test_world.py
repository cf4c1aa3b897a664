"""A run on one rank has nobody to talk to: no process group, as under a plain Trainer."""

import pytest
import torch
import torch.distributed as dist

from lightning_modules.process.world import has_exchange
from sweeper.spec.config import AllReduce, BFloat16

TINY = ("batch=256", "epochs=2", "warmup=0", "schedule=constant", "model.channels=[4,8]")
PLAIN = AllReduce(name="all_reduce", nccl_algo=None)


@pytest.fixture
def process_group():
    """In place of the one that other tests have: none."""
    torch.set_num_threads(1)


@pytest.mark.parametrize(
    ("hook", "world_size", "reproducible", "expected"),
    [
        (PLAIN, 1, False, False),
        (PLAIN, 2, False, True),
        (PLAIN, 1, True, True),
        (BFloat16(name="bf16"), 1, False, True),
        (AllReduce(name="all_reduce", nccl_algo="ring"), 1, False, True),
    ],
)
def test_one_rank_exchanges_gradients_only_through_a_hook(hook, world_size, reproducible, expected):
    assert has_exchange(hook, world_size, reproducible=reproducible) is expected


def test_a_run_on_one_rank_trains_and_resumes_without_a_process_group(run_words):
    run_words(*TINY, stop_after=1, num_train_examples=512)
    assert not dist.is_initialized()

    record = run_words(*TINY, num_train_examples=512)

    assert not dist.is_initialized()
    assert (record["outcome"], record["steps"]) == ("finished", 4)
    whole = run_words(*TINY, name="whole", num_train_examples=512)
    assert [row["train_loss"] for row in record["curve"]] == [
        row["train_loss"] for row in whole["curve"]
    ]
