"""Published packages, unchanged, on made-up data: `make projects`.

packages.toml lists them. Not collected by `make test`, since the packages are not in its
environment.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pandas as pd
import pytest
from hydra_template_project import write_mnist

HERE = Path(__file__).parent
PACKAGES = tomllib.loads((HERE / "packages.toml").read_text())
EPOCHS = 3


class Project:
    """A package's command, in a folder of its own; what a sweep measured of it serves the next."""

    def __init__(self, name, folder, facts):
        self.name, self.folder, self.facts = name, folder, facts
        self.batch = PACKAGES[name]["batch"]
        self.words = PACKAGES[name]["words"].split()

    def call(self, *command):
        paths = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
        said = subprocess.run(
            [sys.executable, *map(str, command)],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "COLUMNS": "200"},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        return said.returncode, said.stdout + said.stderr

    def sweeper(self, *command):
        return self.call("-m", "sweeper", *command)

    def sweep(self, results, *words, batch=None):
        """The rows of a sweep, and what it said."""
        batch = batch or self.batch
        facts = self.folder / results / "facts"
        if self.facts.is_dir():
            shutil.copytree(self.facts, facts, dirs_exist_ok=True)
        run = [f"batch={batch}", f"base_batch={self.batch}", "warmup=0", f"epochs={EPOCHS}"]
        command = ["-m", *self.words, *run, f"results={results}", *words]
        _, said = self.sweeper(*command)
        assert (self.folder / results / "runs").is_dir(), said
        shutil.copytree(facts, self.facts, dirs_exist_ok=True)
        return pd.read_parquet(self.folder / results / "runs").sort_values("global_batch"), said


@pytest.fixture(params=PACKAGES)
def project(request, tmp_path, tmp_path_factory):
    package, copied = PACKAGES[request.param], Path(sys.prefix, request.param)
    is_package = "imports" in package
    if not (importlib.util.find_spec(package["imports"]) if is_package else copied.is_dir()):
        pytest.skip(f"{request.param} is NOT INSTALLED")
    if not is_package:
        shutil.copytree(copied, tmp_path, dirs_exist_ok=True)
        write_mnist(tmp_path / "data/MNIST/raw")
    return Project(request.param, tmp_path, tmp_path_factory.getbasetemp() / request.param)


@pytest.fixture
def full(project):
    if not PACKAGES[project.name].get("full"):
        pytest.skip("tried by doctor, two batches and a kill alone")
    return project


def test_the_doctor_finds_nothing_broken(project):
    code, said = project.sweeper("doctor", *project.words, f"batch={project.batch}")

    assert (code, re.findall("^broken.*", said, re.MULTILINE)) == (0, []), said


def test_two_batches_are_trained_exactly(project):
    batches = [project.batch, 2 * project.batch]

    rows, said = project.sweep("results", batch=",".join(map(str, batches)))

    assert list(rows.outcome) == ["finished"] * 2, said
    assert list(rows.realised_batch_min) == list(rows.realised_batch_max) == batches
    assert rows.metric.notna().all()


def test_a_killed_run_is_finished_by_the_same_command_without_a_difference(project):
    kill = "+trainer.callbacks=[{_target_:witness.Kill,file:mark,epoch:1}]"
    mark = project.folder / "mark"

    mark.touch()
    whole, said = project.sweep("whole", kill)
    mark.unlink()
    killed, killed_said = project.sweep("killed", kill)
    repeated, repeated_said = project.sweep("killed", kill)

    assert list(whole.outcome) == ["finished"], said
    assert list(killed.outcome) == ["preempted"], killed_said
    assert list(repeated.outcome) == ["finished"], repeated_said
    assert list(repeated.metric) == list(whole.metric)
    assert list(repeated.lr_series_hash) == list(whole.lr_series_hash)


def test_the_plan_lists_the_runs(full):
    batches = f"batch={full.batch},{2 * full.batch}"

    code, said = full.sweeper("plan", *full.words, batches, "warmup=0", "--no-memory")

    assert code == 0, said
    assert "2 runs" in said


def test_layouts_have_the_same_rates_and_the_same_metric(full):
    layouts = {
        "whole": [f"micro_batch={full.batch}"],
        "parts": [f"micro_batch={full.batch // 4}"],
        "ranks": ["devices=2", f"micro_batch={full.batch // 4}"],
    }

    found = {name: full.sweep(name, *words) for name, words in layouts.items()}

    rows = pd.concat([rows for rows, _ in found.values()])
    assert list(rows.outcome) == ["finished"] * 3, found
    assert rows.lr_series_hash.nunique() == rows.run_id.nunique() == 1
    assert list(rows.metric) == pytest.approx([rows.metric.iloc[0]] * 3, rel=1e-4)


def test_weights_are_those_of_a_plain_fit_with_the_same_batches(full):
    record = "{_target_:witness.Record,file:" + str(full.folder / "record.pt") + "}"
    rows, said = full.sweep("kept", f"micro_batch={full.batch}", f"+trainer.callbacks=[{record}]")
    assert list(rows.outcome) == ["finished"], said

    code, said = full.call(HERE / "plain_fit.py", "record.pt", EPOCHS, *full.words)

    assert code == 0, said
    moved, differs = map(float, re.search(r"moved (\S+) differs (\S+)", said).groups())
    assert moved > 1e-3
    assert differs < 1e-5
