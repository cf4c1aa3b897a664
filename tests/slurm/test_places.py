"""Where ranks land on a real SLURM, and what the cluster may lack."""

import os
import re
import signal
import tempfile
from pathlib import Path

import pytest
from cluster import Cluster
from conftest import Sweeps
from process_tree import read_until

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("strategy", "digits"), [("ddp", 0), ("fsdp", 1e-12)])
def test_two_nodes_of_two_ranks_give_the_results_of_four_ranks_here(
    sweeps, elsewhere, strategy, digits
):
    """Same order of examples, same sums: equal to the last bit, whoever started the ranks.

    Shards are summed in another order than DDP's gradients.

    One run, without -m. Every rank sees the GPUs of its node, which srun's --gpu-bind hid, and has
    one of its own; the cluster's GPUs are two names, so ranks train on the CPU.
    """
    words = ["epochs=1", "model=showing", "micro_batch=384", "precision=64-true"]
    layout = ["num_nodes=2", "devices=2", "hydra.launcher.gpus_per_node=2", f"strategy={strategy}"]
    command = sweeps.start(*words, *layout, mode=())
    said = sweeps.end(command)
    undisturbed = elsewhere(*words, "devices=4")

    assert "Submitted 1 run as 1 job" in said
    across, here = sweeps.rows().iloc[0], undisturbed.iloc[0]
    assert (across.world_size, here.world_size) == (4, 4)
    for name in ("run_id", "train_loss", "val_loss", "val_accuracy", "lr_series_hash", "steps"):
        near = pytest.approx(here[name], rel=digits) if "loss" in name else here[name]
        assert across[name] == near, name
    assert (across.strategy, here.strategy) == (strategy, "ddp")
    assert across.realised_batch_min == across.realised_batch_max == 7680
    (folder,) = sweeps.results.glob("attempts/*/001")
    logs = [folder / "log.txt", *(folder / f"log-rank{r}.txt" for r in range(1, 4))]
    shown = [re.findall(r"sees GPUs (\S+), local rank (\d)", log.read_text()) for log in logs]
    assert shown == [[("0,1", "0")], [("0,1", "1")]] * 2


def test_out_of_memory_goes_on_with_half_the_micro_batch_in_the_same_job(sweeps):
    """The second epoch fails in micro-batches of 768, and is made in those of 384."""
    words = ["epochs=2", "num_nodes=2", "micro_batch=768"]
    sweeps.run(*words, "model=greedy_above_half")

    (row,) = sweeps.rows().itertuples()
    assert (row.outcome, row.micro_batch, row.attempt) == ("finished", 384, 2)
    assert row.reason == (
        "trained 2 epochs; micro_batch=384 since attempt 1 ran out of memory with micro_batch=768"
    )


def test_a_job_without_scontrol_says_so_and_the_command_goes_on(sweeps):
    """As in a container: the job cannot put itself back into the queue."""
    words = ["epochs=3", "model.seconds=0.06"]
    command = sweeps.start(*words, "hydra.launcher.setup=['export PATH=/nonexistent']")
    sweeps.wait_for_epochs(1)
    job = sweeps.warn()
    sweeps.end(command, code=1)

    (row,) = sweeps.rows().itertuples()
    assert re.fullmatch(
        "its job's time limit was near, and scontrol, which would requeue it, is not available "
        r"\(repeat the command\): stopped after .*\d",
        row.reason,
    )
    assert sweeps.exit_code(job) == "JobState=FAILED ExitCode=75:0"

    sweeps.run(*words)

    (row,) = sweeps.rows().itertuples()
    assert (row.outcome, row.attempt) == ("finished", 2)


@pytest.fixture
def full(tmp_path):
    """A user of a cluster that takes three jobs at most."""
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder:
        cluster = Cluster(Path(folder), max_job_count=3)
        try:
            cluster.start()
            yield Sweeps(cluster, tmp_path)
        finally:
            cluster.stop()


def test_a_full_queue_is_told_and_ctrl_c_leaves_nothing_queued(full):
    """sbatch itself tries for two minutes, without a word to us."""
    command = full.start("seed=range(10)")
    said = read_until(command, "its queue is full")
    os.killpg(command.pid, signal.SIGINT)
    rest, _ = command.communicate(timeout=900)

    assert "SLURM has not accepted the jobs yet: its queue is full (MaxJobCount)" in said
    assert "Stopped." in rest
    assert full.queue() == []


def test_trials_of_a_tuned_sweep_are_jobs(sweeps):
    """Two studies of two trials; a trial does not wait for those of the other study."""
    said = sweeps.run(
        "hydra/sweeper=optuna", "batch=3840,7680", "base_lr=interval(0.01,0.1)", "n_trials=2",
        "hydra.sweeper.max_concurrent=1", "epochs=1",
    )  # fmt: skip

    rows = sweeps.rows()
    assert list(rows.outcome) == ["finished"] * 4, said
    assert sorted(rows.global_batch) == [3840] * 2 + [7680] * 2
    assert rows.base_lr.nunique() >= 2
    assert len(list(sweeps.results.glob("attempts/*/001/slurm.json"))) == 4
