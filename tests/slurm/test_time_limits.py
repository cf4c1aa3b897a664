"""A job's time limit on a real SLURM, and the warning before it: runs go on where they were."""

import pytest
from same_rows import assert_same, superseded

pytestmark = pytest.mark.slow


def test_jobs_of_one_sweep_never_start_from_each_others_weights(sweeps, elsewhere):
    """Lightning's own requeue leaves hpc_ckpt_1.ckpt where later jobs find and load it."""
    (sweeps.folder / "hpc_ckpt_1.ckpt").write_bytes(b"another run's weights")
    words = ["epochs=3", "base_lr=0.01,0.02", "model.seconds=0.05"]
    command = sweeps.start(*words)
    sweeps.wait_for_epochs(1)
    (job,) = {line.partition("_")[0] for line in sweeps.queue()}
    sweeps.cluster.run(f"scancel --batch --signal=USR1 {job}_0")
    sweeps.start_requeued_now()
    sweeps.end(command)
    undisturbed = elsewhere(*words)

    assert_same(sweeps.rows(), undisturbed)
    assert sorted(sweeps.rows().attempt) == [1, 2]
    assert "its job's time limit was near" in superseded(sweeps).reason.iloc[0]
    assert [path.name for path in sweeps.folder.rglob("hpc_ckpt*")] == ["hpc_ckpt_1.ckpt"]


def test_a_run_over_two_nodes_goes_on_after_the_warning(sweeps, elsewhere):
    words = ["epochs=3", "model.seconds=0.1"]
    command = sweeps.start(*words, "num_nodes=2")
    sweeps.wait_for_epochs(1)
    sweeps.warn()
    sweeps.start_requeued_now()
    sweeps.end(command)
    undisturbed = elsewhere(*words, "devices=2")

    assert_same(sweeps.rows(), undisturbed)
    assert sweeps.rows().attempt[0] == 2


def test_a_warned_job_begins_no_further_run(sweeps):
    """Places that runs leave stay empty: what begins then could save no step in what is left.

    Of the two at work one is within a step of 1.2 s, the other within one of 12 s.
    """
    packed = ["runs_per_job=4", "runs_at_a_time=2"]
    command = sweeps.start(
        *("epochs=2", "batch=30720", "seed=0,1", "model=slow", "model.seconds=0.3,0.03"),
        *(f"hydra.launcher.{word}" for word in packed),
    )
    sweeps.wait_for_epochs(1)
    sweeps.warn()
    sweeps.start_requeued_now()
    sweeps.end(command)

    assert sorted(sweeps.rows().attempt) == [1, 1, 2, 2]
    assert (superseded(sweeps).steps > 0).all()


def test_a_run_that_outlives_its_time_limit_still_ends(sweeps, elsewhere):
    """The limit is brought near once the run has a step, however long its start took.

    slurmctld looks at limits every 30 s: the epochs after the first sleep longer than that.
    """
    words = ["epochs=9", "model.seconds=0.06"]
    limits = ["time_min=30", "warning_s=119", "grace_s=50"]
    command = sweeps.start(*words, *(f"hydra.launcher.{limit}" for limit in limits))
    sweeps.wait_for_epochs(1)
    job = sweeps.queue()[0].split()[0]
    used = sweeps.cluster.run(f"squeue --noheader -j {job} -o %M")
    minutes = int(used.strip().split(":")[-2])
    sweeps.cluster.run(f"scontrol update JobId={job} TimeLimit={minutes + 2}")
    sweeps.start_requeued_now()
    sweeps.cluster.run(f"scontrol update JobId={job} TimeLimit=30")
    sweeps.end(command)
    undisturbed = elsewhere(*words)

    assert_same(sweeps.rows(), undisturbed)
    assert sweeps.rows().attempt[0] == 2
    assert "its job's time limit was near" in superseded(sweeps).reason.iloc[0]


def test_a_run_that_never_saves_a_step_in_its_time_is_timed_out(sweeps):
    command = sweeps.start(
        "model=sleeping",
        "trial=false",  # it would sleep in the trial too
        "hydra.launcher.attempts_without_step=2",
        "hydra.launcher.grace_s=1",
    )
    for attempt in (1, 2):
        folder = f"{sweeps.results}/attempts/*/{attempt:03d}/slurm.json"
        sweeps.cluster.wait_for(f"ls {folder}", lambda said: "No such" not in said)
        sweeps.warn()
        if attempt == 1:
            sweeps.start_requeued_now()
    sweeps.end(command, code=1)

    assert sweeps.rows().outcome[0] == "timed_out"
    assert sweeps.rows().reason[0] == (
        "no step was saved within the job's time limit in 2 attempts in a row"
    )
