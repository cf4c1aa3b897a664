"""A question on a real SLURM: each round is an array, and a command that was killed goes on."""

import dataclasses
import json
import re

import pytest
from process_tree import read_until
from same_rows import assert_same

pytestmark = pytest.mark.slow

ASKED = [
    "hydra/sweeper=sequential", "+experiment=noisy_quadratic", "data.num_train_examples=1024",
    "data.length=8", "model=noisy_quadratic", "model.noise_scale=256", "epochs=1", "batch=256",
    "base_lr=0.03,0.1,0.3", "seed=range(0,8)", "question='best base_lr'",
]  # fmt: skip


def kept(sweeps) -> dict:
    (path,) = (sweeps.results / "questions").iterdir()
    return json.loads(path.read_text())


def test_a_command_that_is_killed_in_a_round_is_repeated_and_answers_as_one_that_is_not(sweeps):
    """The round stays in SLURM's queue, and is attached to; no run is made twice."""
    later = ["hydra.launcher.detach=true", "+hydra.launcher.parameters.begin=now+1hour"]
    first = sweeps.start(*ASKED, *later)
    sweeps.cluster.wait_for("squeue --noheader --array", lambda said: len(said.splitlines()) == 9)
    said = read_until(first, "command stays")
    first.kill()
    first.communicate()

    again = sweeps.start(*ASKED)
    rest = read_until(again, "already queued")
    (array,) = {line.split("_")[0] for line in sweeps.queue()}
    sweeps.cluster.run(f"scontrol update JobId={array} StartTime=now")
    rest += sweeps.end(again)

    assert "Submitted 9 runs as an array of 9 jobs" in said
    assert "hydra.launcher.detach has no effect here: which runs come next follows" in said
    assert "9 of 9 runs are already queued or running, with" in rest
    assert re.search(r"Submitted \d runs as an array of \d jobs", rest)
    assert set(sweeps.rows().attempt) == {1}
    here = dataclasses.replace(sweeps, folder=sweeps.folder / "here")
    here.folder.mkdir()
    here.run(*ASKED, launcher="local")
    assert kept(sweeps) == kept(here)
    assert kept(sweeps)["why"].startswith("Decided after ")
    assert_same(sweeps.rows(), here.rows())
