"""Ways to exchange gradients that torch does not have, or does not resume."""

import os
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from ranks import ask_ranks, hierarchical_means, hybrid_means, train_each
from torch.nn.parallel import DistributedDataParallel

from lightning_modules import worker
from lightning_modules.gradients.ddp_hooks import PowerSGD, build_exchange
from sweeper.spec.config import AllReduce, Hierarchical, Hybrid


def test_two_nodes_of_two_ranks_have_the_mean_of_four(tmp_path):
    """Of 0 to 3 the mean is 6 / 4, of the squares 14 / 4, of the cubes 36 / 4: on every rank."""
    means = ask_ranks(hierarchical_means, tmp_path / "rendezvous", world_size=4)

    assert means == [[1.5, 3.5, 9.0]] * 4


def test_hybrid_takes_large_buckets_by_all_reduce_and_small_ones_by_nodes(tmp_path):
    found = ask_ranks(hybrid_means, tmp_path / "rendezvous", world_size=4)

    assert found == [[[1.5, 3.5, 9.0], False, [1.5, 3.5], True]] * 4


@pytest.mark.parametrize(("name", "devices", "size"), [("hybrid", 6, 6), ("hierarchical", 4, 4)])
def test_a_nodes_ranks_are_its_devices_unless_given(name, devices, size):
    kinds = {"hybrid": partial(Hybrid, threshold_mib=4), "hierarchical": Hierarchical}
    made = partial(kinds[name], name=name, nccl_algo=None)

    null = build_exchange(made(ranks_per_node=None), devices=devices)
    given = build_exchange(made(ranks_per_node=2), devices=devices)

    assert (null._hook_state._ranks_per_node, given._hook_state._ranks_per_node) == (size, 2)


def test_powersgd_on_other_ranks_goes_on_with_the_mean_of_all_errors(process_group):
    """Errors 1 and 3 of two ranks become 2 on one, so what the next exchange adds is the same."""
    del process_group
    errors = [{0: torch.full((12,), 1.0)}, {0: torch.full((12,), 3.0)}]
    factors = {0: torch.zeros(1)}
    saved = {
        "errors_of_ranks": errors,
        "left_factors": factors,
        "right_factors": factors,
        "steps": 7,
    }
    resumed = PowerSGD(rank=1, start_step=2)

    resumed.load_state_dict(saved)
    wrapped = SimpleNamespace(model=DistributedDataParallel(torch.nn.Linear(3, 3)))
    here = SimpleNamespace(device=torch.device("cpu"))
    resumed.on_train_start(SimpleNamespace(strategy=wrapped), here)

    state = resumed.state_dict()
    torch.testing.assert_close(state["errors_of_ranks"], [{0: torch.full((12,), 2.0)}])
    assert state["steps"] == 7


def test_powersgd_on_two_ranks_exchanges_one_thing_after_the_other(grid, tmp_path):
    """Its exchanges and DDP's met each other's on the other rank, which ended both."""
    words = ("batch=128", "micro_batch=64", "bn_span=16", "epochs=2", "warmup=0", "devices=2")
    words += ("comm_hook=powersgd", "comm_hook.start_step=2", "model.channels=[4,8]")
    (config,) = grid(*words)
    config["data"]["num_train_examples"] = 1152

    records = ask_ranks(
        partial(train_each, {"powersgd": config}), tmp_path / "rendezvous", world_size=2
    )

    first, second = (record["powersgd"] for record in records)
    assert (first["outcome"], first["steps"]) == ("finished", 18)
    losses = [[row["train_loss"] for row in one["curve"]] for one in (first, second)]
    assert losses[0] == losses[1]


@pytest.mark.parametrize(("word", "setting"), [("ring", "ring"), ("tree", "ring;allreduce:tree")])
def test_the_algorithm_of_nccl_is_set_for_nccl_before_ranks_meet(monkeypatch, word, setting):
    monkeypatch.delenv("NCCL_ALGO", raising=False)

    worker.choose_nccl(AllReduce(name="all_reduce", nccl_algo=word))

    assert os.environ["NCCL_ALGO"] == setting


def test_an_algorithm_of_nccl_is_refused_where_gloo_exchanges(process_group):
    del process_group

    with pytest.raises(ValueError, match=r"^comm_hook\.nccl_algo must be null on CPUs, .* GPUs\.$"):
        build_exchange(AllReduce(name="all_reduce", nccl_algo="ring"), devices=1)
