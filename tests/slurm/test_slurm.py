"""The launcher on a real SLURM: the straight line, refusals, the queue."""

import json
import os
import re
import signal
import sys

import pytest
from process_tree import read_until

pytestmark = pytest.mark.slow

STATUS = f"{sys.executable} -m sweeper status"


def test_a_sweep_is_one_array_and_each_run_a_row_and_an_exit_code(sweeps):
    """SLURM sees the truth: a failed run is a failed job (with Hydra's own launcher it is not)."""
    words = ["model=slow,raising", "epochs=2", "micro_batch=3840"]  # a step before it fails
    said = sweeps.run(*words, code=1)
    rows = sweeps.rows()

    (job,) = re.findall(r"Submitted 2 runs as an array of 2 jobs, number (\d+)", said)
    assert sorted(rows.outcome) == ["failed", "finished"]
    assert set(rows.reason[rows.outcome == "failed"]) == {
        "RuntimeError: the third micro-batch is cursed"
    }
    codes = sorted(sweeps.exit_code(f"{job}_{index}") for index in range(2))
    assert codes == ["JobState=COMPLETED ExitCode=0:0", "JobState=FAILED ExitCode=1:0"]
    jobs = sweeps.cluster.run("scontrol show job")
    assert "JobName=batch=7680_warmup=0_lr_rule=linear_seed=0" in jobs
    assert not list(sweeps.results.glob("slurm/*/queued/*"))
    assert not list(sweeps.folder.glob("hpc_ckpt*"))

    again = sweeps.run(*words, code=1)

    assert "1 of 2 runs already has a result" in again
    assert "Submitted" not in again


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["hydra.launcher.partition=nowhere"],
            "sbatch says: invalid partition specified: nowhere. Batch job submission failed: "
            "Invalid partition name specified. Request what the cluster has, under hydra.launcher",
        ),
        (["hydra.launcher.memory_gib=5000"], "Request what the cluster has, under hydra.launcher"),
        (
            ["hydra.launcher.time_min=2", "hydra.launcher.warning_s=120"],
            "hydra.launcher.grace_s must be below warning_s, and that more than 60 s below the "
            "time limit, as SLURM may warn that much earlier; got "
            "grace_s=90, warning_s=120, time_min=2 (120 s).",
        ),
        (["+hydra.launcher.partitoin=x"], "hydra.launcher has no key partitoin. Its keys:"),
    ],
)
def test_what_slurm_would_refuse_is_a_sentence_and_nothing_is_left(sweeps, words, sentence):
    said = sweeps.run(*words, code=2)

    assert "\nNothing was started.\n" in f"\n{said}"
    assert sentence in said
    assert "Traceback" not in said
    assert not list(sweeps.results.glob("slurm/*/queued/*"))


def test_jobs_that_wait_in_vain_are_told(sweeps):
    """Three nodes of two: SLURM takes the job and keeps it."""
    command = sweeps.start("num_nodes=3", "batch=7680", "micro_batch=128")
    said = read_until(command, "wait because")
    command.send_signal(signal.SIGINT)
    rest, _ = command.communicate(timeout=900)

    assert re.search("Jobs wait because of Partition(NodeLimit|Config) ", said)
    assert "Stopped." in rest


def test_a_host_without_slurm_is_told_so(sweeps, monkeypatch):
    environment = {"PATH": "/nonexistent", "PYTHONPATH": os.environ["PYTHONPATH"]}
    monkeypatch.setattr(type(sweeps.cluster), "environment", environment)
    said = sweeps.run(code=2)

    assert said.endswith(
        "1 run to train.\nNothing was started.\nhydra/launcher=slurm must be started on a host "
        "with SLURM's programs; sbatch and squeue are not on PATH. Go to a login node of the "
        "cluster, or use hydra/launcher=local.\n"
    )


def test_what_is_queued_is_attached_to_and_never_submitted_twice(sweeps):
    """Detached, repeated, shown by status, attached to again from another process.

    One was queued by an earlier version: its ticket lacks the keys that were added since, all off
    by default.
    """
    sweeps.detach("seed=0,1", "epochs=1", "+hydra.launcher.parameters.begin=now+1hour")
    queued = sweeps.queue()
    again = sweeps.detach("seed=0,1", "epochs=1")

    assert len(queued) == 2
    assert "2 of 2 runs are already queued or running" in again
    assert sweeps.queue() == queued

    path, _ = sweeps.results.glob("slurm/*/queued/*/*.json")
    ticket = json.loads(path.read_text())
    off = {k for k, v in ticket["config"].items() if v is None or v is False}
    known = {k: v for k, v in ticket["config"].items() if k not in off - {"bn_span"}}
    path.write_text(json.dumps({**ticket, "config": known}))
    status = sweeps.cluster.run(f"{STATUS} {sweeps.results}")
    assert "2 queued: BeginTime" in status
    sweeps.cluster.run(f"scontrol update JobId={queued[0].split('_')[0]} StartTime=now")
    sweeps.run("seed=0,1", "epochs=1")

    assert len(known) < len(ticket["config"])
    assert ticket["run_id"] in set(sweeps.rows().run_id)
    assert list(sweeps.rows().outcome) == ["finished"] * 2
    assert list(sweeps.rows().attempt) == [1, 1]
