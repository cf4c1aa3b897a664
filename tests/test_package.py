"""What is built for other environments holds all that a sweep and its figures need."""

import os
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SWEEP = (
    *("-m", "batch=3840", "warmup=0,1", "epochs=2", "data.num_train_examples=3840"),
    "schedule=constant",
)


def said_by(*command: str | Path, folder: Path = ROOT) -> str:
    """A command that nothing of this environment helps."""
    alone = {key: text for key, text in os.environ.items() if not key.startswith("PYTHON")}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env=alone,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """A folder with the archive of the sources and the wheel that is made from it."""
    folder = tmp_path_factory.mktemp("dist")
    said_by(sys.executable, "-m", "build", "--outdir", folder)
    return folder


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory) -> Path:
    """The programs of a new environment: the wheel, and this one's packages without sweeper."""
    environment = tmp_path_factory.mktemp("environment")
    said_by(sys.executable, "-m", "venv", environment)
    (wheel,) = built.glob("*.whl")
    said_by(environment / "bin/python", "-m", "pip", "install", "--no-deps", "--no-index", wheel)
    (packages,) = environment.glob("lib/python3*/site-packages")
    # Paths that a .pth names are searched, but not for further .pth: not for the editable sweeper.
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"))
    return environment / "bin"


@pytest.mark.slow
def test_the_archives_hold_the_packages_and_the_defaults_and_no_tests(built):
    (wheel,), (sources,) = built.glob("*.whl"), built.glob("*.tar.gz")

    names = zipfile.ZipFile(wheel).namelist()
    rooms = {name.split("/")[0] for name in names if "dist-info" not in name}
    assert rooms == {"analysis", "hydra_plugins", "lightning_modules", "sweeper"}
    assert "sweeper/conf/config.yaml" in names
    with tarfile.open(sources) as archive:
        kept = {name.partition("/")[2] for name in archive.getnames()}
    assert {"README.md", "LICENSE", "conf/config.yaml", "tests/test_package.py"} <= kept


@pytest.mark.slow
def test_a_sweep_and_its_figures_from_an_installed_wheel_in_a_folder_of_the_users(
    installed, tmp_path
):
    where = said_by(
        installed / "python", "-c", "import sweeper; print(sweeper.__file__)", folder=tmp_path
    )
    assert where.startswith(str(installed.parent))

    assert said_by(installed / "sweeper", "--version", folder=tmp_path).startswith("sweeper ")
    said_by(installed / "sweeper", *SWEEP, folder=tmp_path)
    said_by(installed / "sweeper", "analysis", "figures", folder=tmp_path)

    assert len([*(tmp_path / "results/runs").glob("*.parquet")]) == 2
    assert (tmp_path / "figures/accuracy_vs_warmup.png").stat().st_size > 10_000


def from_folder(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sweeper", *words],
        cwd=folder,
        text=True,
        capture_output=True,
        check=False,
    )


@pytest.mark.parametrize("kind", ["package", "file"])
def test_a_package_of_the_users_that_hides_the_one_that_trains_is_refused(tmp_path, kind):
    name = "lightning_modules"
    own = tmp_path / name / "__init__.py" if kind == "package" else tmp_path / f"{name}.py"
    own.parent.mkdir(exist_ok=True)
    own.write_text("")

    said = from_folder(tmp_path, "plan")

    assert said.returncode == 2
    assert f"The import {name} must find sweeper's own package; got {own}" in said.stderr
    assert "Rename it" in said.stderr


PROJECT = """
import pytorch_lightning as pl, torch
from torch.utils.data import DataLoader, TensorDataset
from analysis import SCALE  # the project's own

class Data(pl.LightningDataModule):
    def __init__(self, batch_size=4):
        super().__init__()
    def train_dataloader(self):
        return DataLoader(TensorDataset(torch.linspace(-1, 1, 32)[:, None]), batch_size=4)
    val_dataloader = train_dataloader

class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
    def training_step(self, batch, batch_idx):
        return (self.layer(batch[0]) - SCALE * batch[0]).square().mean()
    def validation_step(self, batch, batch_idx):
        self.log("val/mse", self.training_step(batch, batch_idx))
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
"""
OWN = (
    *("-m", "batch=8,16", "warmup=0", "epochs=2", "metric=val/mse", "metric_mode=min"),
    *("module._target_=project.Module", "data._target_=project.Data"),
)


def sweep_with_own_analysis(folder: Path, kind: str, *sweeper: str | Path) -> None:
    """A project whose module imports its own `analysis` is swept, and its results analysed."""
    own = folder / ("analysis.py" if kind == "file" else "analysis/__init__.py")
    own.parent.mkdir(exist_ok=True)
    own.write_text("SCALE = 2.0\n")
    (folder / "project.py").write_text(PROJECT)

    said_by(*sweeper, *OWN, folder=folder)
    said = said_by(*sweeper, "analysis", "estimates", folder=folder)

    assert len([*(folder / "results/runs").glob("*-finished.parquet")]) == 2
    assert "How does the best warmup grow" in said


@pytest.mark.parametrize(
    ("kind", "sweeper"),
    [
        ("file", [sys.executable, "-m", "sweeper"]),
        ("package", [Path(sys.executable).parent / "sweeper"]),
    ],
    ids=["python -m", "script"],
)
def test_a_project_has_an_analysis_of_its_own(tmp_path, kind, sweeper):
    sweep_with_own_analysis(tmp_path, kind, *sweeper)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["file", "package"])
def test_a_project_with_an_analysis_of_its_own_is_swept_from_the_wheel(installed, tmp_path, kind):
    sweep_with_own_analysis(tmp_path, kind, installed / "sweeper")


def test_a_folder_that_is_no_package_hides_nothing(tmp_path):
    (tmp_path / "analysis").mkdir()

    assert from_folder(tmp_path, "--version").stdout.startswith("sweeper ")
