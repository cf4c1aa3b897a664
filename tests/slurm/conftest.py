"""A real SLURM for the tests of this folder and sweeps on it; skipped where there is none."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest
import yaml
from cluster import Cluster, missing_programs
from provoked import train_awake

from sweeper.launch.ranks import LocalRanks

CONF = Path(__file__).parent / "conf"
_SWEEP = [sys.executable, "-m", "sweeper"]
_FOLDER = ["--config-dir", str(CONF)]
SHORT = ["batch=7680", "warmup=0", "schedule=constant", "threads=1", "model=slow"]


@pytest.fixture(scope="session")
def cluster() -> Generator[Cluster]:
    """Two slurmd, started for the tests and stopped after them."""
    if missing := missing_programs():
        pytest.skip(f"SLURM is not installed here ({', '.join(missing)}): see .ci/install-slurm")
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder:
        cluster = Cluster(Path(folder))
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()


def _short(words: Sequence[str]) -> list[str]:
    """The words, with those of a short run of a slow linear model where they name no other."""
    named = {word.partition("=")[0] for word in words}
    return [*(word for word in SHORT if word.partition("=")[0] not in named), *words]


def _of_class(word: str) -> list[str]:
    """A word without need of --config-dir: a model of that folder by its class and settings."""
    path = CONF / f"{word.replace('=', '/')}.yaml"
    if not (word.startswith("model=") and path.exists()):
        return [word]
    settings = yaml.safe_load(path.read_text())
    target = settings.pop("_target_")
    return [
        f"model._target_={target}",
        *(f"+model.{key}={value}" for key, value in settings.items()),
    ]


@dataclass(frozen=True)
class Sweeps:
    """Commands of a user on the cluster's login node.

    Attributes:
        cluster: the cluster.
        folder: where the user is; the results lie in it.
    """

    cluster: Cluster
    folder: Path

    @property
    def results(self) -> Path:
        return self.folder / "results"

    def start(
        self, *words: str, launcher: str = "slurm", mode: Sequence[str] = ("-m",)
    ) -> subprocess.Popen[str]:
        """`python -m sweeper -m WORDS`, on a slow linear model unless the words name another."""
        where = [f"results={self.results}", f"hydra/launcher={launcher}"]
        where += ["hydra.launcher.poll_s=1"] if launcher == "slurm" else []
        return subprocess.Popen(
            [*_SWEEP, *mode, *_FOLDER, *_short(words), *where],
            cwd=self.folder,
            env=self.cluster.environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so that tests can press Ctrl-C
        )

    def end(self, command: subprocess.Popen[str], code: int = 0) -> str:
        """Wait for the end of a command, with this code; what it printed."""
        try:
            said, _ = command.communicate(timeout=900)
        except subprocess.TimeoutExpired:
            command.kill()
            said, _ = command.communicate()
        assert command.returncode == code, said
        return said

    def run(self, *words: str, launcher: str = "slurm", code: int = 0) -> str:
        """Start a command and wait for its end."""
        return self.end(self.start(*words, launcher=launcher), code)

    def warn(self) -> str:
        """Tell the only job, whose number this is, that its time limit is near."""
        ((job, *_),) = (line.split() for line in self.queue())
        self.cluster.run(f"scancel --batch --signal=USR1 {job}")
        return job

    def detach(self, *words: str) -> str:
        """Submit and return at once."""
        return self.run(*words, "hydra.launcher.detach=true")

    def rows(self) -> pd.DataFrame:
        return pd.read_parquet(self.results / "runs")

    def queue(self) -> list[str]:
        """Number, state and name of each of the user's jobs."""
        return self.cluster.run("squeue --noheader --array -o '%i %T %j'").splitlines()

    def epochs(self) -> int:
        """Epochs completed by the furthest attempt."""
        curves = self.results.glob("attempts/*/*/progress.jsonl")
        return max((len(curve.read_text().splitlines()) for curve in curves), default=0)

    def wait_for_training(self) -> None:
        """Wait until a slow model is at its first micro-batch."""
        logs = f"cat {self.results}/attempts/*/*/log.txt"
        self.cluster.wait_for(logs, lambda said: "training" in said, seconds=300)

    def wait_for_epochs(self, count: int) -> None:
        self.cluster.wait_for("true", lambda _: self.epochs() >= count, seconds=300)

    def start_requeued_now(self) -> None:
        """SLURM holds requeued jobs back for two minutes; in tests for two seconds.

        slurmd refuses a job ("Job credential revoked") in the second in which it was requeued.
        """
        asked = "squeue --noheader --array -o '%T %r'"
        self.cluster.wait_for(asked, lambda said: "BeginTime" in said)
        time.sleep(2)

        def all_start(said: str) -> bool:
            for line in self.queue() if "BeginTime" in said else ():
                self.cluster.run(
                    f"scontrol update JobId={line.split()[0]} StartTime=now", check=False
                )
            return "BeginTime" not in said and "COMPLETING" not in said

        self.cluster.wait_for(asked, all_start)

    def exit_code(self, job: str) -> str:
        """State and exit code that SLURM has of a job."""
        answer = self.cluster.run(f"scontrol show job {job}").split()
        return " ".join(word for word in answer if word.startswith(("JobState=", "ExitCode=")))


@pytest.fixture
def sweeps(cluster: Cluster, tmp_path: Path) -> Generator[Sweeps]:
    """A user in a folder of its own; what is left in the queue is cancelled at the end."""
    yield Sweeps(cluster, tmp_path)
    cluster.run("scancel -u $(id -un)", check=False)
    cluster.wait_for("squeue --noheader", lambda said: not said.strip())


@pytest.fixture
def elsewhere(
    cluster: Cluster, sweep_here: Callable[..., int], tmp_path: Path
) -> Callable[..., pd.DataFrame]:
    """The rows of the same runs, undisturbed, without SLURM and without sleep, for comparison."""
    del cluster

    def run(*words: str) -> pd.DataFrame:
        results = tmp_path / "elsewhere"
        spelled_out = [part for word in _short(words) for part in _of_class(word)]
        assert sweep_here(results, *spelled_out, ranks=LocalRanks(train_awake)) == 0
        return pd.read_parquet(results / "runs")

    return run
