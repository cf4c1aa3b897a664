"""What can take a run's nodes on a real SLURM: it goes on from its own weights, and ends."""

import re
import sys

import pytest
from same_rows import assert_same, superseded

pytestmark = pytest.mark.slow


def steps_until(where: str, *, steps_per_epoch: int) -> int:
    """Steps that a run has taken which was left here, by the words of its reason."""
    if inside := re.fullmatch(r"(\d+) of (\d+) steps of epoch (\d+)", where):
        steps, of, epoch = map(int, inside.groups())
        assert of == steps_per_epoch
        return steps + (epoch - 1) * steps_per_epoch
    return int(re.fullmatch(r"epoch (\d+)", where)[1]) * steps_per_epoch


def test_a_preempted_run_is_saved_at_its_next_step_and_goes_on(sweeps, elsewhere):
    """A partition of higher priority takes both nodes (submitit's own path starts at step 0)."""
    words = ["epochs=4", "model.seconds=0.06"]
    command = sweeps.start(*words)
    sweeps.wait_for_epochs(1)
    sweeps.cluster.run(
        "sbatch --partition=high -N2 --ntasks-per-node=4 -o /dev/null --wrap 'sleep 2'"
    )
    sweeps.start_requeued_now()
    sweeps.end(command)
    undisturbed = elsewhere(*words)

    assert_same(sweeps.rows(), undisturbed)
    (first,) = superseded(sweeps).itertuples()
    assert first.outcome == "preempted"
    where = re.fullmatch(r"SLURM took its nodes away: stopped after (.*)", first.reason)[1]
    assert first.steps == steps_until(where, steps_per_epoch=8)
    assert first.steps > 8


def test_an_epoch_that_outlives_the_grace_is_not_lost(sweeps, elsewhere):
    """Steps of 3 s, epochs of eight steps, 15 s from SIGTERM to the end."""
    words = ["epochs=1", "model.seconds=0.3"]
    command = sweeps.start(*words)
    sweeps.wait_for_training()
    sweeps.cluster.run("sbatch --partition=high -N2 --ntasks-per-node=4 -o /dev/null --wrap true")
    sweeps.start_requeued_now()
    sweeps.end(command)
    undisturbed = elsewhere(*words)

    assert_same(sweeps.rows(), undisturbed)
    (first,) = superseded(sweeps).itertuples()
    assert re.search(r": stopped after \d of 8 steps of epoch 1$", first.reason), first.reason


def test_a_node_that_dies_is_survived(sweeps, elsewhere):
    """SIGKILL to a slurmd and all it started; SLURM starts its job again on the other node."""
    words = ["epochs=4", "seed=0,1", "model.seconds=0.05"]
    command = sweeps.start(*words)
    sweeps.wait_for_epochs(1)
    nodes = set(sweeps.cluster.run("squeue --noheader --array -o %N").split())
    sweeps.cluster.kill_node(min(nodes))
    try:
        sweeps.start_requeued_now()
        sweeps.end(command)
    finally:
        sweeps.cluster.start_node(min(nodes))
    undisturbed = elsewhere(*words)

    assert_same(sweeps.rows(), undisturbed)
    assert "gone after epoch" in superseded(sweeps).reason.iloc[0]


def test_scancel_of_one_run_is_an_outcome_and_the_rest_goes_on(sweeps):
    command = sweeps.start("epochs=3", "seed=0,1", "model.seconds=0.05")
    sweeps.wait_for_epochs(1)
    sweeps.cluster.run(f"scancel {sweeps.queue()[0].split()[0]}")
    sweeps.end(command, code=1)

    rows = sweeps.rows().set_index("outcome")
    assert sorted(rows.index) == ["finished", "preempted"]
    assert re.fullmatch(r"cancelled with scancel: stopped after .*\d", rows.reason["preempted"])


def test_scancel_of_a_run_that_waits_is_an_outcome(sweeps):
    command = sweeps.start("+hydra.launcher.parameters.begin=now+1hour")
    sweeps.cluster.wait_for("squeue --noheader", lambda said: "PD" in said)
    sweeps.cluster.run("scancel -u $(id -un)")
    sweeps.end(command, code=1)

    assert sweeps.rows().outcome[0] == "preempted"
    assert sweeps.rows().reason[0].startswith("its job left the queue before the run started")


def test_sweeper_stop_saves_what_runs_and_cancels_what_waits(sweeps, elsewhere):
    words = ["epochs=4", "seed=0,1", "model.seconds=0.05"]
    sweeps.detach(*words, "hydra.launcher.throttle=1")
    sweeps.wait_for_epochs(1)
    said = sweeps.cluster.run(f"{sys.executable} -m sweeper stop {sweeps.results}")
    sweeps.cluster.wait_for("squeue --noheader", lambda listed: not listed.strip())

    assert "2 runs stay queued; new workers resume them, and the sweep submits them again" in said
    assert list(sweeps.rows().outcome) == ["preempted"]
    assert "`sweeper stop` was called: stopped after" in sweeps.rows().reason[0]
    said = sweeps.run(*words)
    assert "Submitted 2 runs as an array of 2 jobs" in said
    assert_same(sweeps.rows(), elsewhere(*words))
    assert sorted(sweeps.rows().attempt) == [1, 2]
