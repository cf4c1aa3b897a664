"""What a sweep asks SLURM for, on a real SLURM: arrays, packing, headers, many runs."""

import json
import re

import pytest
from same_rows import assert_same

pytestmark = pytest.mark.slow


def test_a_header_that_takes_nodes_away_is_refused_before_training(sweeps):
    sweeps.run("epochs=1", "num_nodes=2", "+hydra.launcher.parameters.nodes=1", code=1)

    row = sweeps.rows().iloc[0]
    assert row.outcome == "failed"
    assert row.reason.startswith(
        "num_nodes must be the number of nodes in the job; got num_nodes=2, SLURM gave 1."
    )


def test_short_runs_share_a_job_and_a_header_that_says_one_task_changes_no_batch(sweeps):
    """`#SBATCH --ntasks=1` makes Lightning believe in one rank and halves the batch."""
    said = sweeps.run(
        "epochs=1", "seed=0,1,2,3,4", "devices=2", "hydra.launcher.runs_per_job=3",
        "hydra.launcher.runs_at_a_time=2", "+hydra.launcher.parameters.ntasks=1",
    )  # fmt: skip

    assert "Submitted 5 runs as an array of 2 jobs" in said
    rows = sweeps.rows()
    assert list(rows.outcome) == ["finished"] * 5
    assert set(rows.world_size) == {2}
    assert {*rows.realised_batch_min, *rows.realised_batch_max} == {7680}


def test_whole_nodes_pull_runs_until_none_is_left(sweeps):
    """One job on each node with both of its GPUs, two runs at a time."""
    said = sweeps.run(
        "epochs=1", "seed=range(9)", "hydra.launcher.pulling_jobs=2",
        "hydra.launcher.runs_at_a_time=2", "hydra.launcher.gpus_per_node=2",
    )  # fmt: skip

    assert "Submitted 9 runs as an array of 2 jobs" in said
    assert list(sweeps.rows().outcome) == ["finished"] * 9
    assert set(sweeps.rows().attempt) == {1}
    notes = [
        json.loads(path.read_text()) for path in sweeps.results.glob("attempts/*/*/slurm.json")
    ]
    assert {note["nodes"] for note in notes} == {"n1", "n2"}
    assert len({note["job"] for note in notes}) == 2
    assert not [*sweeps.results.glob("slurm/*/queued/*")]


def test_points_that_differ_in_layout_alone_are_one_job_named_by_batch_and_warmup(sweeps):
    said = sweeps.detach(
        "devices=1,2", "seed=0,1,2", "batch=7680,3840", "+hydra.launcher.parameters.begin=now+1hour"
    )

    assert len(re.findall("Submitted 6 runs as an array of 6 jobs", said)) == 1
    assert {line.split()[2] for line in sweeps.queue()} == {"batch=3840,7680_warmup=0"}


def test_a_thousand_and_two_runs_are_two_arrays_below_the_largest(sweeps):
    """MaxArraySize is 1001 here."""
    said = sweeps.detach(
        "seed=range(1002)", "+hydra.launcher.parameters.begin=now+1hour",
        "hydra.launcher.throttle=10",
    )  # fmt: skip

    assert re.findall(r"Submitted ([\d,]+) runs? as (?:an array of )?([\d,]+) job", said) == [
        ("1,001", "1,001"),
        ("1", "1"),
    ]
    assert len(sweeps.queue()) == 1002
    (array,) = set(sweeps.cluster.run("squeue --noheader -o %K").split()) - {"N/A"}
    assert array == "0-1000%10"


def test_jobs_wait_for_shorter_runs_of_their_trunk(sweeps, elsewhere):
    """8 steps of 7,680 in an epoch; 2 jobs of an array have nothing to do at first."""
    words = ["schedule=wsd", "seed=0,1"]

    said = sweeps.run(*words, "lengths=[5,10]", "cooldown=0.2")

    assert "22 epochs to train in place of 30" in said
    assert "Submitted 4 runs as an array of 4 jobs" in said
    rows = sweeps.rows()
    assert sorted(rows.trunk[rows.epochs == 10].str.partition("@")[2]) == ["32", "32"]
    assert_same(rows, elsewhere(*words, "epochs=5,10", "schedule.cooldown=0.2"))
