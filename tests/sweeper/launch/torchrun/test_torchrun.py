"""torchrun instead of a launcher: its processes train each run together, on one machine or two."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from sweeper.launch.torchrun.group import Group
from sweeper.launch.torchrun.launcher import add_layout

CONF = Path(__file__).parents[3] / "slurm/conf"
SHORT = ["batch=7680", "warmup=0", "schedule=constant", "epochs=1", "threads=1"]
TWO_MACHINES_OF_4 = Group(
    rank=0, local_rank=0, node_rank=0, world_size=8, devices=4, master="first"
)


def torchrun(options: list[str], words: list[str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "torch.distributed.run", *options, "-m", "sweeper"]
    return subprocess.Popen(
        [*command, "-m", "--config-dir", str(CONF), *SHORT, *words],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["batch=1"], ["devices=4", "num_nodes=2", "batch=1"]),
        (["-m", "--config-dir", "x", "batch=1,2"],
         ["-m", "--config-dir", "x", "devices=4", "num_nodes=2", "batch=1,2"]),
        (["num_nodes=2", "seed=1"], ["devices=4", "num_nodes=2", "seed=1"]),
        (["devices=1", "num_nodes=1"], ["devices=1", "num_nodes=1"]),
        ([], ["devices=4", "num_nodes=2"]),
    ],
)  # fmt: skip
def test_the_layout_is_that_of_torchrun_unless_the_words_name_one(words, expected):
    assert add_layout(words, TWO_MACHINES_OF_4) == expected


def test_a_variable_of_torchrun_that_was_left_behind_is_named(command, monkeypatch):
    for name in ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "left")
    monkeypatch.setenv("RANK", "0")

    said = command("-m", "batch=256")

    assert said.returncode == 2
    assert "got LOCAL_RANK=, GROUP_RANK=, WORLD_SIZE=, LOCAL_WORLD_SIZE=." in said.stderr
    assert "unset TORCHELASTIC_RUN_ID." in said.stderr


@pytest.mark.slow
def test_two_machines_train_each_run_together_and_one_row_is_written(sweep_here, results):
    """Two agents on loopback; the run that fails on rank 1 alone is reported in its own words."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = [
        "--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", "--rdzv-id=of-two",
        f"--rdzv-endpoint=localhost:{port}", "--local-addr=127.0.0.1",
    ]  # fmt: skip
    words = ["model=one_rank_raising,small_cnn", "trial=false", f"results={results}"]
    agents = [torchrun(options, words) for _ in range(2)]
    said = [agent.communicate(timeout=900)[0] for agent in agents]

    rows = pd.read_parquet(results / "runs").set_index("outcome")
    assert sorted(rows.index) == ["failed", "finished"], said
    assert all(agent.returncode == 1 for agent in agents)
    assert rows.reason["failed"] == "RuntimeError: rank 1 is cursed (rank 1)"
    across = rows.loc["finished"]
    assert (across.world_size, across.attempt) == (2, 1)
    assert across.realised_batch_min == across.realised_batch_max == 7680

    elsewhere = results.with_name("elsewhere")
    assert sweep_here(elsewhere, *SHORT, "devices=2") == 0
    alone = pd.read_parquet(elsewhere / "runs").iloc[0]
    for name in ("run_id", "train_loss", "val_loss", "val_accuracy", "lr_series_hash", "steps"):
        assert across[name] == alone[name], name


@pytest.mark.slow
def test_a_layout_that_torchrun_did_not_start_is_refused_before_training(results):
    refused = torchrun(["--nproc-per-node=2"], ["devices=4", f"results={results}"])
    said, _ = refused.communicate(timeout=900)

    assert refused.returncode == 1
    assert (
        "Nothing was started.\ndevices and num_nodes must match the ranks that torchrun started; "
        "got devices=4 num_nodes=1, WORLD_SIZE=2 LOCAL_WORLD_SIZE=2. Remove both: they follow "
        "from torchrun.\n"
    ) in said
    assert not (results / "runs").exists() or not list((results / "runs").iterdir())
