"""The files of docs/machines.md are what they say, as far as can be seen without the machines."""

import shlex
import signal
import subprocess
from pathlib import Path

import pytest
import yaml
from torch.distributed.run import parse_args

FOLDER = Path(__file__).parents[1] / "examples/machines"


def read(name: str):
    return yaml.safe_load((FOLDER / name).read_text())


def words_of(name: str) -> list[str]:
    """The words of our command in a file, after `sweeper`."""
    if name == "two-pods.yaml":
        (node,) = read(name)["spec"]["replicatedJobs"]
        (container,) = node["template"]["spec"]["template"]["spec"]["containers"]
        launched = parse_args(container["args"])
        assert (launched.module, launched.training_script) == (True, "sweeper")
        return ["plan", *(word for word in launched.training_script_args if word != "-m")]
    if name == "workers.yaml":
        (container,) = read(name)["spec"]["template"]["spec"]["containers"]
        return container["args"]
    text = read(name)["run"] if name.endswith("yaml") else (FOLDER / name).read_text()
    return shlex.split(text.partition("sweeper work")[2].join(["work ", ""]))


@pytest.fixture
def _signals():
    """A worker in this process sets handlers and an alarm of its own."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGALRM)}
    yield
    signal.alarm(0)
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("_signals")
@pytest.mark.parametrize("name", sorted(path.name for path in FOLDER.iterdir()))
def test_our_words_in_a_file_are_understood(name, command, tmp_path):
    words = [word.replace("/shared/results", str(tmp_path / "results")) for word in words_of(name)]

    (tmp_path / "results" / "runs").mkdir(parents=True)

    done = command(*words)

    assert done.returncode == 0, done.stderr
    assert f"results={tmp_path / 'results'}" in words


@pytest.mark.parametrize("name", ["workers.yaml", "two-pods.yaml"])
def test_kubernetes_knows_the_objects(name):
    """A JobSet holds jobs; its own part has no schema there."""
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    found = read(name)
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "job"}}
    jobs = [found]
    if found["kind"] == "JobSet":
        jobs = [job | part["template"] for part in found["spec"]["replicatedJobs"]]
        network = f"{found['metadata']['name']}-{found['spec']['replicatedJobs'][0]['name']}-0-0"
        assert f"{network}.{found['metadata']['name']}:" in (FOLDER / name).read_text()

    for object_ in jobs:
        kubernetes_validate.validate(object_, "1.31", strict=True)


@pytest.mark.parametrize("name", ["workers.pbs", "workers.lsf"])
def test_scripts_are_bash(name):
    assert subprocess.run(["bash", "-n", FOLDER / name], check=False).returncode == 0
